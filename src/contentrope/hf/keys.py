"""Turning keys towards the address of their unit, in attention and in the model's own cache.

Shapes: window, the columns from the first whose unit a call may complete, to the last read; keys, those that a tensor
stands for: all columns, the last of them (a window of attention), or all and room behind (a static cache).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformers.cache_utils import StaticLayer

from contentrope.hf.rotary import Turning
from contentrope.rotary import Rotation


class Window(NamedTuple):
    begin: int
    total: int
    """Columns read so far, those of the call among them: the end of the window."""
    completed: Bool[Tensor, "batch window"] | None
    """Whether the call has completed the column's unit; None: all that anybody reads."""
    angles: tuple[Float[Tensor, "batch window kv_heads pairs"], ...]
    """For each turning of the model, the turn from an open unit's key to a completed one's, where it is completed.
    None at all: the call completes nothing."""
    rotations: tuple[Rotation, ...]
    """What keys are turned by. Those of units that are not completed are not turned, but for new ones that begin at an
    anchor."""
    addresses: tuple[Float[Tensor, "batch window kv_heads pairs"], ...] = ()
    """Of the columns' units, if anchors look them up."""

    def first_of(self, keys: Float[Tensor, "batch kv_heads keys head_dim"]) -> int:
        """The column that the first of the keys stands for."""
        return max(self.total - keys.shape[2], 0)

    def rotation(self, number: int, begin: int, end: int) -> Rotation:
        if (begin, end) == (self.begin, self.total):
            return self.rotations[number]
        part = slice(begin - self.begin, end - self.begin)
        return Rotation(*(None if x is None else x[:, part] for x in self.rotations[number]))  # type: ignore[arg-type]


def placed(
    keys: Float[Tensor, "batch kv_heads keys head_dim"], new: int, rotation: Rotation, total: int, turning: Turning
) -> Tensor:
    """A copy of the keys, the ``new`` ones, of the last columns read, turned to where their open unit stands."""
    end = min(total, keys.shape[2])
    part = keys[:, :, end - new : end].transpose(1, 2)
    parts = keys[:, :, : end - new], turning.turn(part, rotation).transpose(1, 2), keys[:, :, end:]
    return torch.cat([part for part in parts if part.shape[2]], dim=2)


def turned(
    keys: Float[Tensor, "batch kv_heads keys head_dim"], window: Window, number: int, turning: Turning
) -> Tensor:
    """A copy of the keys, those in the window turned."""
    begin, middle = _turned_part(keys, window, number, turning)
    end = begin + middle.shape[2]
    around = keys[:, :, :begin], middle, keys[:, :, end:]
    parts = [part for part in around if part.shape[2]]
    return middle if len(parts) == 1 else torch.cat(parts, dim=2)


def turn_in_place(
    keys: Float[Tensor, "batch kv_heads keys head_dim"], window: Window, number: int, turning: Turning
) -> None:
    begin, middle = _turned_part(keys, window, number, turning)
    keys[:, :, begin : begin + middle.shape[2]].copy_(middle)


def _turned_part(keys: Tensor, window: Window, number: int, turning: Turning) -> tuple[int, Tensor]:
    """Where among the keys the window begins, and the turned keys from there to its end."""
    first = window.first_of(keys)
    begin, end = max(window.begin, first), window.total
    part = keys[:, :, begin - first : end - first].transpose(1, 2)
    return begin - first, turning.turn(part, window.rotation(number, begin, end)).transpose(1, 2)


def turn_back(layer: Any, window: Window, number: int, turning: Turning) -> None:
    """Turn the keys that a layer of the cache holds."""
    if layer.keys is not None and layer.keys.numel():
        layer.keys = turned(layer.keys, window, number, turning)


def readdressed(
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    layer: Any,
    window: Window,
    number: int,
    turning: Turning,
    *,
    in_place: bool,
) -> Float[Tensor, "batch kv_heads keys head_dim"]:
    """The keys that attention was handed, turned; the ``layer`` of the cache, if there is one, holds them so too.

    ``in_place``: nobody needs them as they were.
    """
    if layer is None or layer.keys is None:  # no cache, or one that is passed over, as with gradient checkpointing
        return turned(key, window, number, turning)
    if in_place and layer.keys.untyped_storage().data_ptr() == key.untyped_storage().data_ptr():
        turn_in_place(key if key.shape[2] >= layer.keys.shape[2] else layer.keys, window, number, turning)
        return key
    addressed = turned(key, window, number, turning)
    first, first_handed = window.first_of(layer.keys), window.first_of(key)
    if isinstance(layer, StaticLayer):
        # Its memory must stay where it is. What attention was handed is the same memory, and is read first.
        return addressed
    if first >= first_handed:
        layer.keys = addressed[:, :, first - first_handed :]
    else:  # it records the past of a window
        layer.keys = turned(layer.keys, window, number, turning)
    return addressed


def settle(layer: Any, addressed: Float[Tensor, "batch kv_heads keys head_dim"], window: Window) -> None:
    """After attention: a static layer is given the turned keys too."""
    if not isinstance(layer, StaticLayer) or layer.keys is None:
        return
    first, first_addressed = window.first_of(layer.keys), window.first_of(addressed)
    begin = max(window.begin, first)
    with torch.no_grad():
        layer.keys[:, :, begin - first : window.total - first].copy_(
            addressed[:, :, begin - first_addressed : window.total - first_addressed]
        )
