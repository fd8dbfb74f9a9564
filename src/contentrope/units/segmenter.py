"""From token ids to the unit table, for a whole batch or chunk by chunk with the same result."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

from contentrope.config import require_positive
from contentrope.errors import InputError
from contentrope.units.rules import Boundaries, Rule, Terminators, token_ids
from contentrope.units.table import (
    Units,
    can_be_read,
    check_integers,
    check_masks,
    count_edges,
    map_tensors,
    start_edges,
)

UNKNOWN = sys.maxsize


@dataclass(frozen=True)
class SegmenterState:
    """What the next token depends on, per row. Tensors are never written in place."""

    rule: Int[Tensor, "batch k"]
    next_unit: Int[Tensor, "batch 1"]
    next_local: Int[Tensor, "batch 1"]  # 0 when no unit is open
    start: Int[Tensor, "batch 1"]  # column of the open unit's first token; with none open, the next column
    memory: Bool[Tensor, "batch 1"]  # mark of the open unit; with none open, False
    reader_seen: Bool[Tensor, "batch 1"]
    all_valid: Bool[Tensor, "batch 1"]  # True in every row: made once, not for every token that is decoded
    none_ends: Bool[Tensor, "batch 1"]  # False in every row, likewise
    has_memory: bool = False  # marks were given for some chunk so far
    most_open: int = UNKNOWN  # no row has more tokens in its open unit; a bound, true of some of the rows too
    opened: int | None = None  # host copy of what open_from gives, of all rows together; None: there is none
    columns: int = 0  # consumed so far, padding included

    def open_from(self) -> int:
        """The first column of any row's open unit; with none open, the next column."""
        if not torch.compiler.is_compiling() and self.opened is not None:  # a compiler would take it for a case
            return self.opened
        first = torch.where(self.next_local > 0, self.start, self.columns)
        return int(first.min()) if len(first) else self.columns

    def open_columns(self, begin: int) -> Bool[Tensor, "batch columns"]:
        """Which of the columns from `begin` to the last consumed one are of their row's open unit, padding included."""
        columns = torch.arange(begin, self.columns, device=self.start.device)
        return (self.next_local > 0) & (columns >= self.start)

    def reorder(self, index: Int[Tensor, "rows"]) -> "SegmenterState":
        """The state of these rows, as a beam search selects them. The host copy of where the first open unit began is
        dropped: that unit may be of a row that is not kept."""
        return replace(map_tensors(self, lambda rows: rows.index_select(0, index)), opened=None)


class Segmenter:
    """Cuts token ids into units. Holds no state: `advance` is a pure function of the state it is given.

    `reader` are marker ids: a unit is memory if and only if no marker occurs at or before its first token.

    >>> segmenter = Segmenter(Terminators({0}), max_length=3)
    >>> state = segmenter.initial(batch_size=1)
    >>> units, state = segmenter.advance(state, torch.tensor([[5, 0, 7, 7]]))
    >>> units.unit.tolist()
    [[0, 0, 1, 1]]
    >>> units, state = segmenter.advance(state, torch.tensor([[7, 7]]))  # three 7s: the longest unit
    >>> units.unit.tolist(), units.closes.tolist(), units.start.tolist()
    ([[1, 2]], [[True, False]], [[2, 5]])
    """

    def __init__(self, rule: Rule, *, max_length: int = 256, reader: Iterable[int] = ()) -> None:
        if not torch.compiler.is_compiling() and not isinstance(rule, Rule):
            raise InputError(f"rule is {rule!r}: to end units at token ids write Terminators({{...}})")
        require_positive("max_length", max_length)
        self.rule = rule
        self.max_length = max_length
        self.reader = Terminators(token_ids("reader", reader))

    def marked_by_mask(self) -> "Segmenter":
        """The same units; a mask says which are memory, whatever markers the text has."""
        return Segmenter(self.rule, max_length=self.max_length) if self.reader.ids else self

    def initial(self, batch_size: int, device: torch.device | str = "cpu") -> SegmenterState:
        none = torch.zeros(batch_size, 1, dtype=torch.int64, device=device)
        no = torch.zeros(batch_size, 1, dtype=torch.bool, device=device)
        return SegmenterState(
            rule=self.rule.initial(batch_size, device),
            next_unit=none,
            next_local=none,
            start=none,
            memory=no,
            reader_seen=no,
            all_valid=~no,
            none_ends=no,
            has_memory=bool(self.reader.ids),
            most_open=0,
            opened=0,
        )

    def advance(
        self,
        state: SegmenterState,
        ids: Int[Tensor, "batch seq"],
        *,
        valid: Bool[Tensor, "batch seq"] | None = None,
        memory: Bool[Tensor, "batch seq"] | None = None,
        ends: Bool[Tensor, "batch seq"] | None = None,
        known: Sequence[int] | None = None,
    ) -> tuple[Units, SegmenterState]:
        """The units of the next tokens, and the state after them.

        `valid`: False for padding, anywhere. `memory`: the mark at a unit's first token decides for the unit.
        `ends`: the caller's ends instead of the rule's for these tokens, which the rule then never sees.
        `known`: with one token per row, a host copy of the ids, if there is one: avoids a GPU sync.
        """
        check_integers("ids", ids)
        if ids.shape[0] != state.next_unit.shape[0]:
            rows = f"ids have {ids.shape[0]} rows, the state {state.next_unit.shape[0]}"
            raise InputError(f"{rows}: pass the state of these rows")
        check_masks(ids, valid=valid, ends=ends, memory=memory)
        if memory is not None and self.reader.ids:
            raise InputError(f"memory= and reader={self.reader.ids} both mark memory units: pass one of them")
        if known is not None and (ids.shape[1] != 1 or len(known) != ids.shape[0]):
            raise InputError(f"known has {len(known)} ids, ids are {tuple(ids.shape)}: pass one per row, or none")
        one_token = ids.shape[1] == 1 and valid is None
        is_valid = valid
        if is_valid is None:
            is_valid = state.all_valid if one_token else torch.ones_like(ids, dtype=torch.bool)
        ends_any, rule_state = None, state.rule
        if ends is None:
            if one_token and known is not None and isinstance(self.rule, Terminators):
                ends_any = any(number in self.rule.ids for number in known)
            if ends_any is False:
                ends = state.none_ends
            elif ends_any and len(ids) == 1:
                ends = state.all_valid
            else:
                ends, rule_state = self.rule.scan(ids, is_valid, state.rule)
        marks, reader_seen = self._marks(state, ids, is_valid, memory)
        chunk = _Chunk(ends, is_valid, marks, valid is not None, rule_state, reader_seen, ends_any)
        return (_advance_one if one_token else _advance_many)(state, chunk, self.max_length)

    def _marks(
        self, state: SegmenterState, ids: Tensor, valid: Tensor, memory: Tensor | None
    ) -> tuple[Bool[Tensor, "batch seq"] | None, Bool[Tensor, "batch 1"]]:
        """The mark of a unit that would begin at each token (None: no marks at all), and the readers seen."""
        if self.reader.ids:
            markers = self.reader.found_in(ids) & valid
            if ids.shape[1] == 1:
                seen = state.reader_seen | markers
                return ~seen, seen
            seen = torch.cat([state.reader_seen, markers], 1).cumsum(1) > 0
            return ~seen[:, 1:], seen[:, -1:]
        if memory is not None:  # what follows marked units reads them, with a marker or without
            return memory, torch.ones_like(state.reader_seen)
        return torch.zeros_like(valid) if state.has_memory else None, state.reader_seen


def segment(
    ids: Int[Tensor, "batch seq"],
    rule: Rule,
    *,
    max_length: int = 256,
    valid: Bool[Tensor, "batch seq"] | None = None,
    memory: Bool[Tensor, "batch seq"] | None = None,
    reader: Iterable[int] | None = None,
) -> Units:
    """The units of whole sequences; see Segmenter for the arguments.

    >>> ids = torch.tensor([[5, 0, 6, 0, 1, 7, 0, 5]])
    >>> units = segment(ids, Terminators({0}), reader={1})
    >>> units.unit.tolist()
    [[0, 0, 1, 1, 2, 2, 2, 3]]
    >>> units.memory.int().tolist()
    [[1, 1, 1, 1, 0, 0, 0, 0]]
    """
    check_integers("ids", ids)
    if isinstance(rule, Boundaries) and rule.ends.shape != ids.shape:
        raise InputError(f"ends have shape {tuple(rule.ends.shape)}, ids {tuple(ids.shape)}: pass one end per token")
    segmenter = Segmenter(rule, max_length=max_length, reader=() if reader is None else reader)
    units, _ = segmenter.advance(segmenter.initial(ids.shape[0], ids.device), ids, valid=valid, memory=memory)
    return units


class _Chunk(NamedTuple):
    """The next tokens, as the two ways of advancing need them."""

    ends: Bool[Tensor, "batch seq"]  # without those the maximum length forces
    valid: Bool[Tensor, "batch seq"]
    marks: Bool[Tensor, "batch seq"] | None
    padded: bool
    rule_state: Int[Tensor, "batch k"]
    reader_seen: Bool[Tensor, "batch 1"]
    ends_any: bool | None  # host copy of whether one of the ends is True; None: there is none


def _advance_one(state: SegmenterState, chunk: _Chunk, max_length: int) -> tuple[Units, SegmenterState]:
    """The general case for one valid token per row, in the fewest operations: decoding runs it every step.

    Whether this token ends a unit is read back here, once, unless there is a host copy. Mostly it ends none, and little
    is to be brought up to date then.
    """
    local = state.next_local
    closes, ends_any, most_open, opened = chunk.ends, chunk.ends_any, state.most_open, state.opened
    is_stale = most_open >= max_length - 1 or (opened is None and len(local) == 1)
    if is_stale and state.columns and can_be_read(local):  # once, after prefill
        opened = state.open_from()
        most_open = state.columns - opened
    if torch.compiler.is_compiling() or most_open >= max_length - 1:
        closes = closes | (local == max_length - 1)
        ends_any = ends_any or None
    if ends_any is None and state.columns and can_be_read(closes):
        ends_any = bool(closes if len(closes) == 1 else closes.any())
    memory = open_memory = state.memory
    if chunk.marks is not None:
        memory = torch.where(local == 0, chunk.marks, state.memory)
        open_memory = memory.masked_fill(closes, False)
    units = Units(
        unit=state.next_unit,
        local=local,
        start=state.start,
        closes=closes,
        valid=chunk.valid,
        memory=memory,
        has_memory=chunk.marks is not None,
        offset=state.columns,
        longest=max_length,
        ends_any=ends_any,
    )
    next_unit, next_local, start, most_open = state.next_unit, local + 1, state.start, _more(most_open, 1)
    if ends_any is not False:
        next_unit = next_unit + closes
        next_local = next_local.masked_fill(closes, 0)
        start = start.masked_fill(closes, state.columns + 1)
        opened = None
        if ends_any and len(closes) == 1:
            most_open, opened = 0, state.columns + 1
    return units, SegmenterState(
        rule=chunk.rule_state,
        next_unit=next_unit,
        next_local=next_local,
        start=start,
        memory=open_memory,
        reader_seen=chunk.reader_seen,
        all_valid=state.all_valid,
        none_ends=state.none_ends,
        has_memory=chunk.marks is not None,
        columns=state.columns + 1,
        most_open=most_open,
        opened=opened,
    )


def _advance_many(state: SegmenterState, chunk: _Chunk, max_length: int) -> tuple[Units, SegmenterState]:
    valid, offset = chunk.valid, state.columns
    ends = chunk.ends & valid if chunk.padded else chunk.ends
    # An end forced by the length restarts the count too, hence the remainder.
    local = count_edges(ends, valid if chunk.padded else None, state.next_local) % max_length
    is_longest = local[:, :-1] == max_length - 1
    closes = ends | (is_longest & valid if chunk.padded else is_longest)
    unit = state.next_unit + F.pad(closes.cumsum(1), (1, 0))
    if chunk.padded or offset:
        start = start_edges(local, state.start, offset)
    else:  # all columns are tokens, and all are here
        start = torch.arange(local.shape[1], device=local.device) - local
    memory = _memory_edges(state, chunk, start)
    own_local, own_start, own_memory = local[:, :-1], start[:, :-1], memory[:, :-1]
    if chunk.padded:  # padding is in no unit: it has local 0, begins where it stands, and is not memory
        column = torch.arange(offset, offset + valid.shape[1], device=valid.device)
        own_local, own_start = own_local.masked_fill(~valid, 0), torch.where(valid, own_start, column)
        own_memory = own_memory & valid
    units = Units(
        unit=unit[:, :-1],
        local=own_local,
        start=own_start,
        closes=closes,
        valid=valid,
        memory=own_memory,
        padded=chunk.padded,
        has_memory=chunk.marks is not None,
        offset=offset,
        longest=max_length,
    )
    return units, SegmenterState(
        rule=chunk.rule_state,
        next_unit=unit[:, -1:],
        next_local=local[:, -1:],
        start=start[:, -1:],
        memory=memory[:, -1:],
        reader_seen=chunk.reader_seen,
        all_valid=state.all_valid,
        none_ends=state.none_ends,
        has_memory=chunk.marks is not None,
        columns=offset + valid.shape[1],
        most_open=_more(state.most_open, valid.shape[1]),
    )


def _more(most_open: int, tokens: int) -> int:
    """The most tokens in an open unit after these. A compiler, for which every number is a case, is told none."""
    return UNKNOWN if torch.compiler.is_compiling() else most_open + tokens


def _memory_edges(
    state: SegmenterState, chunk: _Chunk, start: Int[Tensor, "batch edges"]
) -> Bool[Tensor, "batch edges"]:
    """The mark at the first token of the unit a token here belongs to."""
    if chunk.marks is None:
        return torch.zeros_like(start, dtype=torch.bool)
    # First slot: the unit was open already. Last slot: it has not begun.
    marks = torch.cat([state.memory, chunk.marks, torch.zeros_like(state.memory)], 1)
    return marks.gather(1, (start - state.columns + 1).clamp(min=0))
