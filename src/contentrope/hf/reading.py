"""What a call may complete: the columns of its units, their addresses, and the rotations of keys and queries.

Shapes: slots are the units that a call touches, the first of them open before it; span, the columns from the first
whose unit the call may complete, to its last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from contentrope.attention.fused import FusedRotations, address_rotations
from contentrope.cache import Columns, Rotated
from contentrope.hf.addresses import OpenUnit
from contentrope.hf.keys import Rotations, Span
from contentrope.hf.rotary import LayerRotary
from contentrope.rotary import Rotation, rotation_of
from contentrope.units import SegmenterState, Units
from contentrope.window import Leaving, Moved, far_from_near, to_far


class Text(NamedTuple):
    """The tokens of one call."""

    ids: Int[Tensor, "batch seq"]
    valid: Bool[Tensor, "batch seq"] | None
    """None: no padding."""
    ends: Bool[Tensor, "batch seq"] | None
    """The caller's own unit ends, instead of the rule's."""
    positions: Int[Tensor, "rows seq"] | None = None
    """As given; None: counted by column."""
    memory: Bool[Tensor, "batch seq"] | None = None
    """The caller's own marks of memory units, instead of the reader's."""


class Reading(NamedTuple):
    """A call between the columns before it and those after it."""

    text: Text
    units: Units
    before: SegmenterState
    after: SegmenterState
    columns: Columns | None
    addresses: Any
    """:class:`~contentrope.hf.addresses.Addresses`, or what PEFT has wrapped around them."""
    embed: Callable[[Int[Tensor, "batch seq"]], Float[Tensor, "batch seq dim"]]
    """Ids to input embeddings."""
    width: int = 0
    """Of the near window; 0: none."""
    begins: Int[Tensor, "batch seq"] | None = None
    """With a window, the position at which each token's unit begins, -1 for padding and memory."""
    moved: Moved | None = None
    """With a window and a cache: what the call does to it."""

    @property
    def slot(self) -> Int[Tensor, "batch seq"]:
        """The token's unit, counted from the one that was open before this call."""
        return self.units.unit - self.before.next_unit

    @property
    def finished(self) -> Int[Tensor, "batch 1"]:
        """Units that the call completes."""
        return self.after.next_unit - self.before.next_unit

    def by_token(
        self, by_slot: Float[Tensor, "batch slots kv_heads pairs"]
    ) -> Float[Tensor, "batch seq kv_heads pairs"]:
        index = self.slot.clamp(max=by_slot.shape[1] - 1)[..., None, None]
        return by_slot.gather(1, index.expand(-1, -1, *by_slot.shape[2:]))


class Completing(NamedTuple):
    """The units of a call as the columns of a span."""

    reading: Reading
    begin: int
    old: int
    """Columns of the span that were read before."""
    completed: Bool[Tensor, "batch span"] | None
    """None: keys are read in both versions, and all that are read addressed are completed."""
    by_slot: list[Float[Tensor, "batch slots kv_heads pairs"]]
    """Addresses, for each rotary of the model."""

    @property
    def total(self) -> int:
        return self.begin + self.old + self.reading.units.seq_length

    def by_column(self, by_slot: Tensor) -> Float[Tensor, "batch span kv_heads pairs"]:
        new = self.reading.by_token(by_slot)
        return torch.cat((by_slot[:, :1].expand(-1, self.old, -1, -1), new), dim=1) if self.old else new


def _completing(reading: Reading) -> Completing:
    text, units, columns, slot = reading.text, reading.units, reading.columns, reading.slot
    embedded = reading.embed(text.ids)
    if columns is None or not columns.count:
        # A single token reads its own key in the version that queries meet later on.
        both_versions = columns is None and units.seq_length > 1
        completed = None if both_versions else slot < reading.finished
        return Completing(reading, 0, 0, completed, reading.addresses(embedded, units, slot, None))
    if torch.compiler.is_compiling():  # a bound that does not depend on the data
        begin = max(columns.count - reading.addresses.max_length + 1, 0)
    else:
        begin = reading.before.open_from()
    belongs = (columns.fact("unit", begin) == reading.before.next_unit) & columns.fact("valid", begin).bool()
    open_unit = OpenUnit(reading.embed(columns.fact("ids", begin)), columns.fact("local", begin), belongs)
    by_slot = reading.addresses(embedded, units, slot, open_unit)
    completed = torch.cat((belongs & (reading.finished > 0), (slot < reading.finished) & units.valid), dim=1)
    return Completing(reading, begin, columns.count - begin, completed, by_slot)


def completed(reading: Reading, by_kernel: tuple[LayerRotary, ...]) -> Rotations:
    """Keys are rotated where their unit is completed, by one kernel if it is given the rotaries of the model."""
    found = _completing(reading)
    angles = tuple(found.by_column(by_slot) for by_slot in found.by_slot)
    span = Span(Rotated.by(found.begin, found.completed, angles), found.total, found.total)
    if by_kernel and found.completed is None:
        fused = (fused_rotations(*both, reading.units) for both in zip(angles, by_kernel, strict=True))
        return Rotations(span, fused=tuple(fused))
    return Rotations(span, tuple(_of_queries(rotation, reading.units) for rotation in span.rotated.rotations))


def windowed(reading: Reading, by_kernel: tuple[LayerRotary, ...]) -> Rotations:
    """With a near window: the keys that leave it, or all where a whole text is read, and the queries for far keys. One
    kernel rotates them if it is given the rotaries of the model."""
    begins = reading.begins
    assert begins is not None
    frequencies, dtype = reading.addresses.frequencies, reading.addresses.dtype
    to_queries = (far_from_near(reading.width, begins, frequency, dtype) for frequency in frequencies)
    far_queries = tuple(rotation_of(angles) for angles in to_queries)
    if reading.moved is None:
        found = _completing(reading)
        if by_kernel:
            of_each = zip(by_kernel, found.by_slot, frequencies, far_queries, strict=True)
            fused = (_fused_window(reading, rotary, found.by_column(x), f, q) for rotary, x, f, q in of_each)
            span = Span(Rotated.by(0, None, ()), begins.shape[1], begins.shape[1])
            return Rotations(span, fused=tuple(fused), far_queries=far_queries)
        span = _far_span(reading, 0, begins.shape[1], None, [found.by_column(x) for x in found.by_slot], begins)
    elif reading.moved.leaving is None:
        span = None
    else:
        begin, end, where = reading.moved.leaving
        assert reading.columns is not None
        addresses, kept = _addresses_of(reading, reading.moved.leaving), reading.columns.fact("begins", begin, end)
        span = _far_span(reading, begin, end, where, addresses, kept)
    return Rotations(span, far_queries=far_queries)


def _fused_window(
    reading: Reading,
    rotary: LayerRotary,
    angles: Float[Tensor, "batch seq kv_heads pairs"],
    frequency: Float[Tensor, "rows pairs"],
    far_query: Rotation,
) -> FusedRotations:
    """``angles`` are the addresses of each token's unit, forwards as the model rotates."""
    assert reading.begins is not None
    far_key = rotation_of(to_far(None, reading.begins, frequency, reading.addresses.dtype))
    if rotary.backwards:
        far_key, far_query = (Rotation(x.cos, -x.sin) for x in (far_key, far_query))
        angles = -angles
    return address_rotations(angles, reading.units.closes, far_key=far_key, far_query=far_query)


def _addresses_of(reading: Reading, leaving: Leaving) -> list[Float[Tensor, "batch span kv_heads pairs"]]:
    """Of these columns, from the ids and places that are kept. Where the first unit or the last is cut, its keys are
    not rotated."""
    columns = reading.columns
    assert columns is not None
    names = "ids", "unit", "local", "valid"
    ids, unit, local, valid = (columns.fact(name, leaving.begin, leaving.end) for name in names)
    padded = columns.padded or reading.units.padded
    by_slot = reading.addresses.of_columns(reading.embed(ids), local, unit, valid.bool(), padded)
    index = (unit - unit[:, :1])[..., None, None]
    return [x.gather(1, index.expand(-1, -1, *x.shape[2:])) for x in by_slot]


def _far_span(
    reading: Reading,
    begin: int,
    end: int,
    where: Bool[Tensor, "batch span"] | None,
    addresses: list[Float[Tensor, "batch span kv_heads pairs"]],
    begins: Int[Tensor, "batch span"],
) -> Span:
    angles = tuple(
        to_far(address, begins, frequency, reading.addresses.dtype)
        for address, frequency in zip(addresses, reading.addresses.frequencies, strict=True)
    )
    return Span(Rotated.by(begin, where, angles), end, reading.units.offset + reading.units.seq_length)


def fused_rotations(
    angles: Float[Tensor, "batch seq kv_heads pairs"], rotary: LayerRotary, units: Units
) -> FusedRotations:
    """``angles`` are those of each token's unit, forwards as the model rotates."""
    return address_rotations(-angles if rotary.backwards else angles, units.closes)


def _of_queries(rotation: Rotation, units: Units) -> Rotation:
    """Of this call's tokens, those that close a unit are rotated as its keys are."""
    own = (None if x is None else x[:, -units.seq_length :] for x in rotation)
    return Rotation(*own).only_where(units.closes)  # type: ignore[arg-type]
