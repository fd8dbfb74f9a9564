"""The near window of a text that comes in pieces: which cached keys are near, and which leave with a call.

A key is stored as plain RoPE has it while its unit is near, and is rotated once, in place, when its unit leaves the
window: so stored keys that are *far* are a prefix of the columns. Keys of memory units are far as soon as a later unit
is read, wherever they stand.

A window moves when a unit begins: until then all tokens have the window of the one before.

Shapes: columns are those of a slice, from a first column that is named with it, to the last read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from contentrope.attention.pairs import Near, near_window, unit_positions
from contentrope.units import Units
from contentrope.units.table import may_sync

Facts = Callable[[str, int, int], Int[Tensor, "batch columns"]]
"""Facts of columns by name ("begins", "unit", "memory"), from a first column to an end, new columns included."""


class WindowState(NamedTuple):
    """Between two calls."""

    width: int
    positions: Int[Tensor, "batch 1"]
    """Taken so far, by tokens that are neither padding nor memory."""
    far: Int[Tensor, "batch 1"]
    """Stored keys left of this column are far."""
    unit: Int[Tensor, "batch 1"]
    """Of the last token: keys of memory units before it are far too."""
    least: int = 0
    most: int = 0
    """Host copies of the least and the largest of ``far``, or bounds."""
    near: Near | None = None
    """Of the last token, while it is known that the next one does not begin a unit."""

    def reorder(self, index: Int[Tensor, "rows"]) -> WindowState:
        positions, far, unit = (x.index_select(0, index) for x in (self.positions, self.far, self.unit))
        near = None if self.near is None else self.near.reorder(index)
        return self._replace(positions=positions, far=far, unit=unit, near=near)

    def is_far(
        self, begin: int, unit: Int[Tensor, "batch columns"], memory: Bool[Tensor, "batch columns"] | None
    ) -> Bool[Tensor, "batch columns"]:
        """Which of the stored keys from column ``begin`` on are far."""
        in_prefix = torch.arange(begin, begin + unit.shape[1], device=unit.device) < self.far
        return in_prefix if memory is None else torch.where(memory, unit < self.unit, in_prefix)


class Leaving(NamedTuple):
    """Columns whose stored keys are to be rotated from near to far."""

    begin: int
    end: int
    mask: Bool[Tensor, "batch columns"] | None
    """None: all of them."""


class Moved(NamedTuple):
    """What a call does to the window."""

    near: Near
    """Of every query; columns are counted from the first of the text."""
    after: WindowState
    leaving: Leaving | None


def initial_window(width: int, batch: int, device: torch.device) -> WindowState:
    zeros = torch.zeros(batch, 1, dtype=torch.int64, device=device)
    return WindowState(width, zeros, zeros, zeros)


def begins_of(units: Units, positions: Int[Tensor, "batch 1"]) -> Int[Tensor, "batch seq"]:
    """The position at which the unit of each new token begins, -1 for padding and memory."""
    if units.padded or units.has_memory or units.seq_length > 1:
        return unit_positions(units, positions)
    return positions - units.local


def move(
    before: WindowState, units: Units, begins: Int[Tensor, "batch seq"], facts: Facts, *, has_memory: bool
) -> Moved:
    """The windows of new tokens, whose facts are noted already; and what leaves with the last of them."""
    total = units.offset + units.seq_length
    # Of padding and memory units none.
    taken = (begins >= 0).sum(1, keepdim=True) if units.padded or units.has_memory else units.seq_length
    positions, last_unit = before.positions + taken, units.unit[:, -1:]
    if before.near is not None and units.seq_length == 1 and not units.padded:
        near = before.near
        if near.key_memory is not None:
            near = near._replace(key_memory=facts("memory", 0, total).bool())
        kept = near if units.ends_any is False else None
        return Moved(near, before._replace(positions=positions, near=kept), None)
    base = before.least
    unit = facts("unit", base, total)
    memory = facts("memory", base, total).bool() if has_memory else None
    found = near_window(
        before.width,
        facts("begins", base, total),
        unit,
        (begins, units.start - base, units.unit),
        units.memory if has_memory else None,
        memory,
    )
    key_memory = facts("memory", 0, total).bool() if has_memory else None
    near = Near(found.begin + base, found.far_units, key_memory)
    reached = torch.where(begins >= 0, near.begin, 0).amax(1, keepdim=True)
    far = torch.maximum(before.far, reached)
    least, most = bounds(far, total)
    continues = units.seq_length == 1 and units.ends_any is False and not units.padded
    after = WindowState(before.width, positions, far, last_unit, least, most, near if continues else None)
    return Moved(near, after, _leaving(before, after, base, total if has_memory else most, unit, memory))


def bounds(far: Int[Tensor, "batch 1"], total: int) -> tuple[int, int]:
    """On the host: the least and the largest. In a compiled graph, and in training on a GPU, bounds that do not depend
    on them."""
    if not may_sync(far) or not far.numel():
        return 0, total
    least, largest = torch.stack(torch.aminmax(far)).tolist()
    return least, largest


def _leaving(
    before: WindowState, after: WindowState, base: int, end: int, unit: Tensor, memory: Tensor | None
) -> Leaving | None:
    if end <= base:
        return None
    # One row whose bounds agree: a plain range. They may be of other rows too, as before a reorder, or not be known.
    is_exact = before.least == before.most and after.least == after.most
    if memory is None and len(unit) == 1 and is_exact:
        return Leaving(base, end, None)
    unit, memory = unit[:, : end - base], None if memory is None else memory[:, : end - base]
    mask = after.is_far(base, unit, memory) & ~before.is_far(base, unit, memory)
    return Leaving(base, end, mask)


def rolled_back(
    before: WindowState, count: int, facts: Facts, *, has_memory: bool
) -> tuple[WindowState, Leaving | None]:
    """The state as it was after ``count`` columns, at least one; and the columns whose keys are near again."""
    begins, unit = facts("begins", 0, count), facts("unit", 0, count)
    memory = facts("memory", 0, count).bool() if has_memory else None
    in_order = begins.cummax(1).values.contiguous()
    last = in_order[:, -1:]
    edge = torch.searchsorted(in_order, (last - before.width).clamp(min=0).contiguous())
    far = torch.where(last >= 0, edge, 0)
    positions = (begins >= 0).sum(1, keepdim=True)
    after = WindowState(before.width, positions, far, unit[:, -1:], *bounds(far, count))
    again = before.is_far(0, unit, memory) & ~after.is_far(0, unit, memory)
    if not bool(again.any()):
        return after, None
    begin = int(again.any(0).nonzero()[0])
    return after, Leaving(begin, count, again[:, begin:])


def to_far(
    address: Float[Tensor, "batch columns kv_heads pairs"] | None,
    begins: Int[Tensor, "batch columns"],
    frequency: Float[Tensor, "rows pairs"],
    dtype: torch.dtype,
) -> Float[Tensor, "batch columns kv_heads pairs"]:
    """The angles from a near key to the far one: from its position in the text to that in its unit, and its address.

    Computed in float64 and taken modulo a full turn: the angles of large positions are beyond float32.
    """
    angles = -begins.clamp(min=0)[..., None, None] * frequency.double()
    if address is not None:
        angles = angles + address.double()
    return torch.remainder(angles, 2 * torch.pi).to(dtype)


def far_from_near(
    width: int, begins: Int[Tensor, "batch seq"], frequency: Float[Tensor, "rows pairs"], dtype: torch.dtype
) -> Float[Tensor, "batch seq rows pairs"]:
    """The angles from a near query to the far one: its unit begins just beyond the window."""
    angles = (width - begins.clamp(min=0))[..., None, None] * frequency.double()
    return torch.remainder(angles, 2 * torch.pi).to(dtype)
