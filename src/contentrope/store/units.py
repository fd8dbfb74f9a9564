"""From memory units to their keys and values.

A memory unit sees only itself, so its keys and values depend on its own tokens and the model alone. Their last bits
depend also on the shape of the batch they are computed in. So that is always the same for a unit: one row on a CPU and
``ROWS`` elsewhere, empty ones filled up; as long as the next multiple of ``STEP``. What stands in the other rows, or
behind a unit, changes no bit of it.

Shapes: slots are keys and values of layers, two for each.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import DynamicCache

from contentrope.hf.adapter import Adapter
from contentrope.hf.probe import evaluating
from contentrope.store.groups import Piece
from contentrope.store.precision import Parts, Precision, States
from contentrope.units.cutting import Ids

ROWS, STEP = 8, 16
ON_ITS_OWN = ("cpu",)
"""Devices where a unit is computed in a batch of its own: more rows would take as much longer."""


class Kind(NamedTuple):
    """Layers whose keys, or values, have one shape, and are stored in one way."""

    kv_heads: int
    head_dim: int
    apart: Hashable
    """As the precision says."""
    slots: list[int]
    """Of layer n, 2n are the keys and 2n + 1 the values."""


class Layout:
    """How the keys and values of all layers lie in few tensors."""

    def __init__(self, adapter: Adapter, precision: Precision) -> None:
        """Found out by asking the model to read one token."""
        layers = _read(adapter, [(0,)], STEP)
        shapes = [(x.shape[1], x.shape[3], precision.apart(slot)) for slot, x in enumerate(layers)]
        self.kinds = [
            Kind(*shape, [slot for slot, found in enumerate(shapes) if found == shape])
            for shape in dict.fromkeys(shapes)
        ]
        self.slots = len(layers)
        self.dtype, self.precision = layers[0].dtype, precision
        self.bytes_per_token = sum(x.shape[1] * x.shape[3] for x in layers) * self.dtype.itemsize
        """In a cache."""

    def encode(self, states: Sequence[States]) -> Parts:
        """What is stored of a unit, from one tensor for each kind."""
        pairs = zip(states, self.kinds, strict=True)
        return tuple(part for x, kind in pairs for part in self.precision.encode(x, kind.apart))

    def decode(self, parts: Parts, lengths: Sequence[int]) -> Iterator[tuple[Kind, States]]:
        """Of each kind, the keys or values of units whose parts were joined."""
        many = self.precision.parts
        for n, kind in enumerate(self.kinds):
            own = parts[n * many : (n + 1) * many]
            yield kind, self.precision.decode(own, lengths, kind.apart, self.dtype)


def compute(adapter: Adapter, layout: Layout, units: Sequence[Ids]) -> Iterator[tuple[int, Piece]]:
    """Keys and values of units, each with its place among them; units that are computed together come together."""
    rows = 1 if adapter.embedding.device.type in ON_ITS_OWN else ROWS
    order = sorted(range(len(units)), key=lambda n: -_padded(units[n]))
    for length, same in groupby(order, key=lambda n: _padded(units[n])):
        numbers = list(same)
        for begin in range(0, len(numbers), rows):
            batch = numbers[begin : begin + rows]
            yield from zip(batch, _pieces(adapter, layout, [units[n] for n in batch], length, rows), strict=True)


def _padded(unit: Ids) -> int:
    """Behind a unit there is room for one token at least, which the near window needs to leave it behind."""
    return (len(unit) // STEP + 1) * STEP


def _pieces(adapter: Adapter, layout: Layout, units: list[Ids], length: int, rows: int) -> Iterator[Piece]:
    slots = _read(adapter, [*units, *[units[0]] * (rows - len(units))], length)
    together = [torch.stack([slots[slot] for slot in kind.slots], dim=1) for kind in layout.kinds]
    for row, unit in enumerate(units):
        states = [x[row, :, :, : len(unit)].cpu().contiguous() for x in together]
        yield Piece(torch.tensor(unit, dtype=torch.int32), layout.encode(states))


def _read(adapter: Adapter, units: list[Ids], length: int) -> list[Float[Tensor, "rows kv_heads length head_dim"]]:
    """All slots, after the model has read each unit as memory in a row of its own."""
    device = adapter.embedding.device
    ids = torch.zeros(len(units), length, dtype=torch.int64)
    ends = torch.zeros_like(ids, dtype=torch.bool)
    for row, unit in enumerate(units):
        ids[row, : len(unit)] = torch.tensor(unit)
        ends[row, len(unit) - 1] = True
    ids, ends = ids.to(device), ends.to(device)
    cache = DynamicCache(config=adapter.model.config.get_text_config())
    cache.activate_past_recording()  # layers with a sliding window of attention keep all
    with evaluating(adapter.model), torch.autocast(device.type, enabled=False):
        memory = torch.ones_like(ends)
        adapter.decoder(input_ids=ids, past_key_values=cache, use_cache=True, unit_ends=ends, unit_memory=memory)
    layers: list[Any] = cache.layers[: adapter.keeping]
    return [x for layer in layers for x in (layer.keys, layer.values)]
