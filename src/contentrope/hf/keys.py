"""Rotating keys towards the address of their unit, in attention and in the model's own cache.

Shapes: span, the columns whose keys a call may rotate, from the first whose unit it may complete, or that leaves the
near window; keys, those that a tensor stands for: all columns, the last of them (a window of attention), or all and
room behind (a static cache).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.cache_utils import StaticLayer

from contentrope.attention.fused import FusedRotations
from contentrope.cache import Rotated
from contentrope.hf.rotary import LayerRotary
from contentrope.rotary import Rotation

Keys = Float[Tensor, "batch kv_heads keys head_dim"]


class Span(NamedTuple):
    rotated: Rotated
    """From keys as their own unit reads them, or the near window, to addressed ones."""
    end: int
    total: int
    """Columns read so far, those of the call among them."""

    @property
    def begin(self) -> int:
        return self.rotated.begin

    def first_of(self, keys: Keys) -> int:
        """The column that the first of the keys stands for."""
        return max(self.total - keys.shape[2], 0)

    def rotation(self, number: int, begin: int) -> Rotation:
        """Of the columns from ``begin`` on."""
        if begin == self.begin:
            return self.rotated.rotations[number]
        cos, sin, angles = (None if x is None else x[:, begin - self.begin :] for x in self.rotated.rotations[number])
        return Rotation(cos, sin, angles)  # type: ignore[arg-type]


class Rotations(NamedTuple):
    """What a call rotates queries and keys by; tuples have one item for each rotary of the model."""

    span: Span | None = None
    """The columns whose keys are rotated; None: there are none, or all addresses are zero."""
    queries: tuple[Rotation, ...] = ()
    """Queries that close a unit carry its address; not with a near window."""
    far_queries: tuple[Rotation, ...] = ()
    """With a near window: from queries for near keys to those for far ones."""
    fused: tuple[FusedRotations, ...] = ()
    """Instead, where one kernel rotates queries and keys."""


def rotated(keys: Keys, span: Span, number: int, rotary: LayerRotary) -> Tensor:
    """The keys, those in the span rotated: a copy, unless there are none."""
    return _with_part(keys, *_rotated_part(keys, span, number, rotary))


def rotate_in_place(keys: Keys, span: Span, number: int, rotary: LayerRotary) -> None:
    begin, part = _rotated_part(keys, span, number, rotary)
    keys[:, :, begin : begin + part.shape[2]].copy_(part)


def rotate_back(layer: Any, span: Span, number: int, rotary: LayerRotary) -> None:
    """Rotate the keys that a layer of the cache holds."""
    if layer.keys is not None and layer.keys.numel():
        layer.keys = rotated(layer.keys, span, number, rotary)


def _rotated_part(keys: Tensor, span: Span, number: int, rotary: LayerRotary) -> tuple[int, Tensor]:
    """Where among the keys the span begins, and the rotated keys from there to its end."""
    first = span.first_of(keys)
    begin = max(span.begin, first)
    end = max(span.end, begin)  # columns that a window of attention has forgotten are left out
    part = keys[:, :, begin - first : end - first]
    return begin - first, rotary.rotate_states(part, span.rotation(number, begin))


def _with_part(keys: Tensor, begin: int, part: Tensor) -> Tensor:
    if not part.shape[2]:  # all that leave the near window lie before the keys of a sliding window
        return keys
    around = keys[:, :, :begin], part, keys[:, :, begin + part.shape[2] :]
    parts = [x for x in around if x.shape[2]]
    return part if len(parts) == 1 else torch.cat(parts, dim=2)


def readdressed(
    key: Keys, layer: Any, span: Span, number: int, rotary: LayerRotary, *, in_place: bool
) -> Float[Tensor, "batch kv_heads keys head_dim"]:
    """The ``key`` of attention, rotated; the ``layer`` of the cache, if there is one, holds it rotated too.

    ``in_place``: the keys are not needed as they were.
    """
    if layer is None or layer.keys is None:  # no cache, or one that is passed over, as with gradient checkpointing
        return rotated(key, span, number, rotary)
    if in_place and layer.keys.untyped_storage().data_ptr() == key.untyped_storage().data_ptr():
        rotate_in_place(key if key.shape[2] >= layer.keys.shape[2] else layer.keys, span, number, rotary)
        return key
    addressed = rotated(key, span, number, rotary)
    first, first_given = span.first_of(layer.keys), span.first_of(key)
    if isinstance(layer, StaticLayer):
        # Its memory must stay where it is, and attention, which reads the same memory, comes first.
        return addressed
    if first >= first_given:
        layer.keys = addressed[:, :, first - first_given :]
    else:  # it records the past of a window
        layer.keys = rotated(layer.keys, span, number, rotary)
    return addressed


def settle(layer: Any, addressed: Keys, span: Span) -> None:
    """After attention: a static layer is given the rotated keys too."""
    if not isinstance(layer, StaticLayer) or layer.keys is None:
        return
    first, first_addressed = span.first_of(layer.keys), span.first_of(addressed)
    begin = max(span.begin, first)
    with torch.no_grad():
        end = max(span.end, begin)
        layer.keys[:, :, begin - first : end - first].copy_(
            addressed[:, :, begin - first_addressed : end - first_addressed]
        )
