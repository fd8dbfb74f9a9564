"""The streaming state beside cached keys and values: facts of every column, and what the next token depends on.

One for the library's own models and for those it is attached to; they differ in who holds the keys. A *column* is one
step of the batch; rows may hold padding there. A stored key is rotated when its unit is completed, or with a near
window when its unit leaves that, once and in place; by what it was rotated is kept, so that it can be rotated back.

Facts are written together, when they are first read: mostly when a unit is completed.

Shapes: columns (those read; room for them is doubled when used up), kv_heads, pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from contentrope.errors import CacheError
from contentrope.rotary import Rotation, rotation_of
from contentrope.units import Segmenter, SegmenterState, Units
from contentrope.window import WindowState, begins_of, initial_window, rolled_back

ROOM, MOST_UNWRITTEN = 64, 256
ENDS_GIVEN, MEMORY_GIVEN = 1, 2


class Facts(NamedTuple):
    """Of the columns of one call; None: nothing is known of them."""

    ids: Int[Tensor, "batch seq"]
    unit: Int[Tensor, "batch seq"] | None = None
    local: Int[Tensor, "batch seq"] | None = None
    start: Int[Tensor, "batch seq"] | None = None
    begins: Int[Tensor, "batch seq"] | None = None
    """With a near window, the position at which its unit begins."""
    closes: Bool[Tensor, "batch seq"] | None = None
    valid: Bool[Tensor, "batch seq"] | None = None
    memory: Bool[Tensor, "batch seq"] | None = None
    given: Int[Tensor, "batch seq"] | None = None
    """What the caller said instead of the segmenter, as bits: where units end, which of them are memory."""


@dataclass(frozen=True, kw_only=True)
class StreamState:
    """What the next token depends on, per row. Never written in place: a failed call changes nothing."""

    segmenter: SegmenterState | None = None
    """None, as at first and after a rollback: to be found from the facts."""
    window: WindowState | None = None
    biases: dict[Hashable, Float[Tensor, "batch heads 1 columns"]] = field(default_factory=dict)
    """What was added to the scores of the last single token, cached until the unit closes. Columns to come are among
    them."""

    def reorder(self, index: Int[Tensor, "rows"]) -> StreamState:
        return replace(
            self,
            segmenter=None if self.segmenter is None else self.segmenter.reorder(index),
            window=None if self.window is None else self.window.reorder(index),
            biases={},
        )


@dataclass(frozen=True)
class Floor:
    """Columns that were put together from stored units: nothing is rolled back below them."""

    count: int
    state: StreamState


class Rotated(NamedTuple):
    """Columns from ``begin`` on whose stored keys are rotated; tuples have one item for each rotary of the model."""

    begin: int
    where: Bool[Tensor, "batch columns"] | None
    """None: all of them."""
    angles: tuple[Float[Tensor, "batch columns kv_heads pairs"], ...]
    rotations: tuple[Rotation, ...]
    """By these angles, and by nothing where keys stay as they are."""

    @classmethod
    def by(cls, begin: int, where: Bool[Tensor, "batch columns"] | None, angles: Iterable[Tensor]) -> Rotated:
        angles = tuple(angles)
        made = (rotation_of(x) for x in angles)
        return cls(begin, where, angles, tuple(made if where is None else (x.only_where(where) for x in made)))


class Columns:
    """Facts of a call count once it is committed: a failed one changes nothing."""

    def __init__(self, batch: int, device: torch.device, state: StreamState | None = None, room: int = ROOM) -> None:
        self.count = 0
        """Columns of finished calls."""
        self.padded = False
        self.has_memory = False
        self.state = state or StreamState()
        self.floor: Floor | None = None
        self.angles: tuple[Float[Tensor, "batch columns kv_heads pairs"], ...] = ()
        """For each rotary, by what a column's key was rotated, if it was. Made when the first one is."""
        # Apart from the other facts, which a gradient may need as they were.
        self._rotated = torch.zeros(batch, room, dtype=torch.bool, device=device)
        self._table = torch.zeros(len(Facts._fields), batch, room, dtype=torch.int64, device=device)
        self._written = self._noted = 0
        """Columns whose facts are written there, and those whose facts are known at all."""
        self._unwritten: list[Facts] = []

    @classmethod
    def of_memory(
        cls,
        segmenter: Segmenter,
        width: int,
        ids: Int[Tensor, "batch seq"],
        ends: Bool[Tensor, "batch seq"],
        valid: Bool[Tensor, "batch seq"] | None = None,
    ) -> Columns:
        """The columns of memory units, all completed, whose keys lie at their addresses, far of any near window of this
        ``width``: what a model knows that has read them and begins a unit that reads them. They are the floor."""
        marking = segmenter.marked_by_mask()
        before = marking.initial(len(ids), ids.device)
        units, after = marking.advance(before, ids, valid=valid, memory=torch.ones_like(ends), ends=ends)
        window, begins, count = None, None, ids.shape[1]
        if width:
            window = initial_window(width, len(ids), ids.device)
            begins = begins_of(units, window.positions)
            far = torch.full_like(window.far, count)
            window = window._replace(far=far, unit=after.next_unit, least=count, most=count)
        state = StreamState(segmenter=replace(after, opened=count), window=window)
        made = cls(len(ids), ids.device, room=count + ROOM)
        made.note(ids, units, begins, valid=valid, ends_given=True, memory_given=True)
        made.commit(count, state, padded=units.padded, has_memory=bool(count))
        made.floor = Floor(count, state)
        return made

    @property
    def batch(self) -> int:
        return self._table.shape[1]

    @property
    def device(self) -> torch.device:
        return self._table.device

    def fact(self, name: str, begin: int = 0, end: int | None = None) -> Int[Tensor, "batch columns"]:
        """One of :class:`Facts`, of the columns read so far unless told otherwise."""
        self._write()
        return self._table[Facts._fields.index(name), :, begin : self.count if end is None else end]

    @property
    def rotated(self) -> Bool[Tensor, "batch columns"]:
        """Columns whose stored key is rotated."""
        return self._rotated[:, : self.count]

    def note(
        self,
        ids: Int[Tensor, "batch seq"],
        units: Units | None,
        begins: Int[Tensor, "batch seq"] | None = None,
        *,
        valid: Bool[Tensor, "batch seq"] | None = None,
        ends_given: bool = False,
        memory_given: bool = False,
    ) -> None:
        """Take the facts of a call's columns, copies of what is the caller's: who decodes may reuse a tensor."""
        if self._noted > self.count:  # those of a call that has failed
            self._unwritten = self._unwritten[:-1]
            self._written = min(self._written, self.count)
        if len(self._unwritten) == MOST_UNWRITTEN:
            self._write()
        facts = Facts(ids.clone(), valid=None if valid is None else valid.clone())
        given = ENDS_GIVEN * ends_given + MEMORY_GIVEN * memory_given
        if units is not None:
            facts = facts._replace(
                unit=units.unit,
                local=units.local,
                start=units.start,
                begins=begins,
                closes=units.closes.clone() if ends_given else units.closes,
                memory=units.memory if units.has_memory else None,
                given=torch.full_like(ids, given) if given else None,
            )
        self._unwritten.append(facts)
        self._noted = self.count + ids.shape[1]

    def commit(self, columns: int, state: StreamState, *, padded: bool, has_memory: bool = False) -> None:
        """Accept the columns of a finished call."""
        self.padded |= padded
        self.has_memory |= has_memory
        self.count, self.state = self.count + columns, state

    def keep_angles(self, rotated: Rotated) -> None:
        """Of keys that are rotated for good."""
        self._write()
        begin, where, angles, _ = rotated
        if not self.angles:
            room = self._table.shape[2]
            self.angles = tuple(x.new_zeros(self.batch, room, *x.shape[2:]) for x in angles)
        for kept, new in zip(self.angles, angles, strict=True):
            there, new = kept[:, begin : begin + new.shape[1]], new.detach()
            there.copy_(new if where is None else torch.where(where[..., None, None], new, there))
        marks = self._rotated[:, begin : begin + angles[0].shape[1]]
        marks.fill_(True) if where is None else marks.logical_or_(where)

    def reserve(self, columns: int) -> None:
        """Make room for this many columns in all; doubles, so that growth copies each column a few times at most."""
        room = self._table.shape[2]
        if columns > room:
            more = max(columns, 2 * room) - room
            self._table, self._rotated = F.pad(self._table, (0, more)), F.pad(self._rotated, (0, more))
            self._change_angles(lambda x: F.pad(x, (0, 0, 0, 0, 0, more)))

    def rows(self, index: Int[Tensor, "rows"]) -> None:
        """Keep these rows, in this order. Rows may repeat."""
        self._write()
        index = index.to(self.device)
        state = self.state.reorder(index)
        self._table, self._rotated = self._table.index_select(1, index), self._rotated.index_select(0, index)
        self._change_angles(lambda x: x.index_select(0, index))
        self.state = state
        if self.floor is not None:
            self.floor = replace(self.floor, state=self.floor.state.reorder(index))

    def truncate(self, count: int) -> Rotated | None:
        """Forget all columns from ``count`` on; the keys to rotate back, whose unit is open again, or near again."""
        floor = self.floor
        if floor is not None and count < floor.count:
            raise CacheError(
                f"{floor.count} columns are of stored units, so {count} cannot be kept: remove units instead"
            )
        self._write()
        self._leave_inference_mode()
        window, back = self.state.window if count else None, None
        state = replace(self.state, segmenter=None, biases={})
        if floor is not None and count == floor.count:
            state, window = floor.state, floor.state.window
        elif window is not None:
            window, again = rolled_back(window, count, self.fact, has_memory=self.has_memory)
            if again is not None and again.mask is not None:
                back = self._back(again.begin, again.mask)
        elif count:
            back = self._reopened(count)
        self.state = replace(state, window=window)
        self._rotated[:, count:] = False
        self.count = self._written = self._noted = count
        return back

    def segmenter_state(self, segmenter: Segmenter) -> SegmenterState:
        """After these columns; after a rollback they are read again."""
        if self.state.segmenter is not None:
            return self.state.segmenter
        first, state = 0, None
        if self.floor is not None:
            first, state = self.floor.count, self.floor.state.segmenter
        state = state or segmenter.initial(self.batch, self.device)
        if self.count == first:
            return state
        # The rule must not see tokens whose ends the caller gave: run by run, as they were read.
        facts = self.fact("given", first)
        given = facts[0] if self.batch else facts.new_zeros(self.count - first)
        edges = [first, *((given[1:] != given[:-1]).nonzero()[:, 0] + 1 + first).tolist(), self.count]
        for begin, end in pairwise(edges):
            said = int(given[begin - first])
            reading = segmenter.marked_by_mask() if said & MEMORY_GIVEN else segmenter
            marked = self.has_memory and not reading.reader.ids
            masks = {"valid": self.padded, "memory": marked, "closes": bool(said & ENDS_GIVEN)}
            valid, memory, ends = (self.fact(x, begin, end).bool() if has else None for x, has in masks.items())
            _, state = reading.advance(state, self.fact("ids", begin, end), valid=valid, memory=memory, ends=ends)
        return state

    def _write(self) -> None:
        """The facts of all columns to the table."""
        if not self._unwritten:
            return
        self._leave_inference_mode()
        self.reserve(self._noted)
        ids = [facts.ids for facts in self._unwritten]
        by_name = zip(Facts._fields, zip(*self._unwritten, strict=True), strict=True)
        rows = [_joined(of_calls, ids, default=name == "valid") for name, of_calls in by_name]
        self._table[:, :, self._written : self._noted] = torch.stack(rows)
        self._written, self._unwritten = self._noted, []

    def _change_angles(self, change: Callable[[Tensor], Tensor]) -> None:
        self.angles = tuple(change(x) for x in self.angles)

    def _leave_inference_mode(self) -> None:
        """What was made there can be written to only there."""
        if torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
            return
        if self._table.is_inference():
            self._table, self._rotated = self._table.clone(), self._rotated.clone()
            self._change_angles(torch.clone)

    def _reopened(self, count: int) -> Rotated | None:
        open_unit = self.fact("unit", count - 1, count) + self.fact("closes", count - 1, count)
        reopened = (self.fact("unit", 0, count) == open_unit) & self._rotated[:, :count]
        if not bool(reopened.any()):
            return None
        begin = int(reopened.any(0).nonzero()[0])
        return self._back(begin, reopened[:, begin:])

    def _back(self, begin: int, where: Bool[Tensor, "batch columns"]) -> Rotated | None:
        if not self.angles:
            return None
        end = begin + where.shape[1]
        self._rotated[:, begin:end] &= ~where
        return Rotated.by(begin, where, (-x[:, begin:end] for x in self.angles))


def _joined(of_calls: Sequence[Tensor | None], ids: Sequence[Tensor], *, default: bool) -> Int[Tensor, "batch seq"]:
    """One fact of several calls, one after the other."""
    if all(found is None for found in of_calls):
        count = sum(x.shape[1] for x in ids)
        return torch.full((len(ids[0]), count), default, dtype=torch.int64, device=ids[0].device)
    pairs = zip(of_calls, ids, strict=True)
    return torch.cat([torch.full_like(x, default) if y is None else y for y, x in pairs], dim=1).to(torch.int64)
