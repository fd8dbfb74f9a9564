"""From a store to the memory of a cache, a few units at a time.

Units are taken in one order, by key, in which every row has them too. What comes is joined, moved to the device once as
it is stored, decoded there, and copied to every row that has it. So beside the cache itself there is only what is under
way, about ``CHUNK_BYTES`` as stored.

Shapes: slots are keys and values of layers, two for each; columns are those of the sets, the shorter ones padded on the
left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from contentrope.errors import InputError
from contentrope.hf.adapter import Adapter
from contentrope.store.groups import Piece
from contentrope.store.units import Layout

CHUNK_BYTES = 8 * 2**20
Spans = dict[str, tuple[int, int]]
"""The columns of units."""


class Shelf(Protocol):
    """What a cache needs of a store."""

    adapter: Adapter
    layout: Layout

    def units_of(self, documents: Iterable[str]) -> dict[str, list[str]]: ...

    def tokens_of(self, units: Iterable[str]) -> dict[str, int]: ...

    def read_by(self, size: int, units: Iterable[str]) -> Iterator[dict[str, Piece]]: ...


class Filled(NamedTuple):
    states: list[Float[Tensor, "rows kv_heads room head_dim"]]
    """Of every slot; behind the columns is room, with nothing in it."""
    ids: Int[Tensor, "rows columns"]
    rows: list[Spans]

    @property
    def columns(self) -> int:
        return self.ids.shape[1]


def filled(shelf: Shelf, orders: Sequence[Sequence[str]], room: Callable[[int, int], int]) -> Filled:
    """Rows of units, each in the order of their keys. ``room`` says of a slot how large it is to be for so many
    columns."""
    device = shelf.adapter.embedding.device
    everything = sorted({unit for units in orders for unit in units})
    tokens = shelf.tokens_of(everything)
    lengths = [sum(tokens[unit] for unit in units) for units in orders]
    count = max(lengths)
    rows = [
        spans_of({unit: tokens[unit] for unit in units}, count - length)
        for units, length in zip(orders, lengths, strict=True)
    ]
    sizes = [room(slot, count) for slot in range(shelf.layout.slots)]
    states = _empty(shelf.layout, len(rows), sizes, device)
    for row, length in enumerate(lengths):
        for x in states if length < count else ():
            x[row, :, : count - length].zero_()  # nobody reads padding, but it must be numbers
    ids = torch.zeros(len(rows), count, dtype=torch.int64)
    for pieces in shelf.read_by(CHUNK_BYTES, everything):
        _copy_ids(pieces, rows, ids)
        _copy(shelf.layout, pieces, rows, states)
    return Filled(states, ids.to(device), rows)


def spans_of(tokens: Mapping[str, int], begin: int = 0) -> Spans:
    """Of units that lie one behind the other."""
    edges = accumulate(tokens.values(), initial=begin)
    return dict(zip(tokens, pairwise(edges), strict=True))


def moved(x: Tensor, device: torch.device) -> Tensor:
    """On that device. All that a cache takes from a store goes through here."""
    if device.type == "cuda":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


def _empty(layout: Layout, rows: int, sizes: Sequence[int], device: torch.device) -> list[Tensor]:
    kinds = sorted((slot, kind) for kind in layout.kinds for slot in kind.slots)
    try:
        return [
            torch.empty(rows, kind.kv_heads, sizes[slot], kind.head_dim, dtype=layout.dtype, device=device)
            for slot, kind in kinds
        ]
    except RuntimeError as error:
        size = sum(kind.kv_heads * kind.head_dim * sizes[slot] for slot, kind in kinds) * rows * layout.dtype.itemsize
        raise InputError(
            f"{rows} rows of up to {max(sizes)} tokens take {size / 2**30:.1f} GiB, which {device} has not left; name "
            "fewer documents or sets"
        ) from error


def _copy_ids(pieces: Mapping[str, Piece], rows: Sequence[Spans], ids: Int[Tensor, "rows columns"]) -> None:
    for row, spans in enumerate(rows):
        for unit, piece in pieces.items():
            if unit in spans:
                ids[row, slice(*spans[unit])] = piece.ids


def _copy(layout: Layout, pieces: Mapping[str, Piece], rows: Sequence[Spans], states: Sequence[Tensor]) -> None:
    device = states[0].device
    together = zip(*(piece.states for piece in pieces.values()), strict=True)
    parts = tuple(moved(torch.cat(same, dim=2) if len(same) > 1 else same[0], device) for same in together)
    came = spans_of({unit: len(piece.ids) for unit, piece in pieces.items()})
    places = [(row, *_places(came, spans, device)) for row, spans in enumerate(rows) if came.keys() & spans.keys()]
    for kind, decoded in layout.decode(parts, [len(piece.ids) for piece in pieces.values()]):
        for row, chosen, begin in places:
            wanted = decoded[:, :, chosen] if isinstance(chosen, slice) else decoded.index_select(2, chosen)
            for x, slot in zip(wanted, kind.slots, strict=True):
                states[slot][row, :, begin : begin + x.shape[1]].copy_(x)


def _places(came: Spans, spans: Spans, device: torch.device) -> tuple[slice | Tensor, int]:
    """Which of the columns that came a row has, and where they begin there: one behind the other in both."""
    units = [unit for unit in came if unit in spans]
    first, last = units[0], units[-1]
    begin, end = came[first][0], came[last][1]
    if sum(came[unit][1] - came[unit][0] for unit in units) == end - begin:
        return slice(begin, end), spans[first][0]
    chosen = torch.cat([torch.arange(*came[unit]) for unit in units])
    return chosen.to(device), spans[first][0]
