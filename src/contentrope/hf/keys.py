"""Rotating keys towards the address of their unit, in attention and in the model's own cache.

Shapes: window, the columns from the first whose unit a call may complete, to the last read; keys, those that a tensor
stands for: all columns, the last of them (a window of attention), or all and room behind (a static cache).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformers.cache_utils import StaticLayer

from contentrope.anchors import UnitsBefore
from contentrope.attention.fused import FusedRotations
from contentrope.attention.pairs import Spared
from contentrope.hf.rotary import LayerRotary
from contentrope.rotary import Rotation

Keys = Float[Tensor, "batch kv_heads keys head_dim"]


class Window(NamedTuple):
    begin: int
    total: int
    """Columns read so far, those of the call among them: the end of the window."""
    completed: Bool[Tensor, "batch window"] | None
    """Whether the call has completed the column's unit; None: for all that are read."""
    angles: tuple[Float[Tensor, "batch window kv_heads pairs"], ...]
    """For each rotary, the rotation from an open unit's key to a completed one's, where it is completed. None at all:
    the call completes nothing."""
    rotations: tuple[Rotation, ...]
    """What keys are rotated by: nothing where the unit is not completed, but for new ones that begin at an anchor."""
    addresses: tuple[Float[Tensor, "batch window kv_heads pairs"], ...] = ()
    """Of the columns' units, if anchors look them up."""

    def first_of(self, keys: Keys) -> int:
        """The column that the first of the keys stands for."""
        return max(self.total - keys.shape[2], 0)

    def rotation(self, number: int, begin: int) -> Rotation:
        """Of the columns from ``begin`` on."""
        if begin == self.begin:
            return self.rotations[number]
        cos, sin, angles = (None if x is None else x[:, begin - self.begin :] for x in self.rotations[number])
        return Rotation(cos, sin, angles)  # type: ignore[arg-type]


class Standing(NamedTuple):
    """Where its anchor puts an open unit: the same for all its tokens."""

    places: tuple[Rotation, ...]
    """For each rotary, the rotation of its keys and queries."""
    spared: Spared


class Rotations(NamedTuple):
    """What a call rotates queries and keys by; tuples have one item for each rotary of the model."""

    window: Window | None = None
    """The columns whose keys are rotated; None: the call completes no unit, or all addresses are zero."""
    queries: tuple[Rotation, ...] = ()
    """Queries that close a unit carry its address."""
    places: tuple[Rotation, ...] = ()
    """Of the call's keys while their unit is open, if it begins at an anchor."""
    fused: tuple[FusedRotations, ...] = ()
    """Instead, where one kernel rotates queries and keys."""
    spared: Spared | None = None
    recent: tuple[UnitsBefore, ...] | None = None
    """Where anchors may lie after the call."""
    standing: Standing | None = None
    """Where the open unit stands then, if the call has completed none."""


def placed(keys: Keys, new: int, rotation: Rotation, total: int, rotary: LayerRotary) -> Tensor:
    """A copy of the keys, the ``new`` ones, of the last columns read, rotated to where their open unit stands."""
    end = min(total, keys.shape[2])
    return _with_part(keys, end - new, rotary.rotate_states(keys[:, :, end - new : end], rotation))


def rotated(keys: Keys, window: Window, number: int, rotary: LayerRotary) -> Tensor:
    """A copy of the keys, those in the window rotated."""
    return _with_part(keys, *_rotated_part(keys, window, number, rotary))


def rotate_in_place(keys: Keys, window: Window, number: int, rotary: LayerRotary) -> None:
    begin, part = _rotated_part(keys, window, number, rotary)
    keys[:, :, begin : begin + part.shape[2]].copy_(part)


def rotate_back(layer: Any, window: Window, number: int, rotary: LayerRotary) -> None:
    """Rotate the keys that a layer of the cache holds."""
    if layer.keys is not None and layer.keys.numel():
        layer.keys = rotated(layer.keys, window, number, rotary)


def _rotated_part(keys: Tensor, window: Window, number: int, rotary: LayerRotary) -> tuple[int, Tensor]:
    """Where among the keys the window begins, and the rotated keys from there to its end."""
    first = window.first_of(keys)
    begin = max(window.begin, first)
    part = keys[:, :, begin - first : window.total - first]
    return begin - first, rotary.rotate_states(part, window.rotation(number, begin))


def _with_part(keys: Tensor, begin: int, part: Tensor) -> Tensor:
    around = keys[:, :, :begin], part, keys[:, :, begin + part.shape[2] :]
    parts = [x for x in around if x.shape[2]]
    return part if len(parts) == 1 else torch.cat(parts, dim=2)


def readdressed(
    key: Keys, layer: Any, window: Window, number: int, rotary: LayerRotary, *, in_place: bool
) -> Float[Tensor, "batch kv_heads keys head_dim"]:
    """The ``key`` of attention, rotated; the ``layer`` of the cache, if there is one, holds it rotated too.

    ``in_place``: the keys are not needed as they were.
    """
    if layer is None or layer.keys is None:  # no cache, or one that is passed over, as with gradient checkpointing
        return rotated(key, window, number, rotary)
    if in_place and layer.keys.untyped_storage().data_ptr() == key.untyped_storage().data_ptr():
        rotate_in_place(key if key.shape[2] >= layer.keys.shape[2] else layer.keys, window, number, rotary)
        return key
    addressed = rotated(key, window, number, rotary)
    first, first_given = window.first_of(layer.keys), window.first_of(key)
    if isinstance(layer, StaticLayer):
        # Its memory must stay where it is, and attention, which reads the same memory, comes first.
        return addressed
    if first >= first_given:
        layer.keys = addressed[:, :, first - first_given :]
    else:  # it records the past of a window
        layer.keys = rotated(layer.keys, window, number, rotary)
    return addressed


def settle(layer: Any, addressed: Keys, window: Window) -> None:
    """After attention: a static layer is given the rotated keys too."""
    if not isinstance(layer, StaticLayer) or layer.keys is None:
        return
    first, first_addressed = window.first_of(layer.keys), window.first_of(addressed)
    begin = max(window.begin, first)
    with torch.no_grad():
        layer.keys[:, :, begin - first : window.total - first].copy_(
            addressed[:, :, begin - first_addressed : window.total - first_addressed]
        )
