"""One call as all its layers see it: units, who reads which version of a key, and the turns towards addresses.

Made before the first layer and handed to every layer with the call, never kept in a shared place: with gradient
checkpointing layers run again after later calls have begun.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from contentrope.attention import PairRule
from contentrope.hf.addresses import OpenUnit
from contentrope.hf.state import Columns
from contentrope.rotary import Rotation, rotation_of
from contentrope.units import Segmenter, SegmenterState, Units


class Text(NamedTuple):
    """The tokens of one call, as the decoder is given them."""

    ids: Int[Tensor, "batch seq"]
    valid: Bool[Tensor, "batch seq"] | None
    """None: no padding."""
    ends: Bool[Tensor, "batch seq"] | None
    """The caller's own unit ends, instead of the rule's."""


class Turns(NamedTuple):
    """For one turning of the model: what queries and the keys of all columns are turned by towards their address."""

    query: Rotation
    key: Rotation


@dataclass(frozen=True, kw_only=True)
class Frame:
    units: Units
    columns: Columns
    """All columns read so far, this call's among them."""
    rule: PairRule
    turns: tuple[Turns, ...]
    plain_mask: bool
    """Whether the mask is causal with padding and nothing else, so that a backend of the core can stand in."""
    zero: bool
    """Whether all addresses are zero and units do not compete: then the model's own attention says the same."""
    competition: float | Float[Tensor, "layers heads"] = 0.0

    @property
    def offset(self) -> int:
        """Columns read before this call."""
        return self.rule.offset

    def competition_in(self, layer: int) -> float | Float[Tensor, "heads"]:
        return self.competition[layer] if isinstance(self.competition, Tensor) else self.competition

    def positions(self, given: Int[Tensor, "rows seq"], gate: float) -> Tensor:
        """What the rotary embedding is told instead of the model's own positions: ``local + gate * start``."""
        if gate == 1.0:
            return given
        local = self.units.local.to(given.device)
        return local if gate == 0.0 else local + gate * (given - local)


def frame_of(
    text: Text,
    before: Columns | None,
    segmenter: Segmenter,
    addresses: Any,
    embedding: torch.nn.Module,
    *,
    plain_mask: bool,
    competition: float = 0.0,
) -> Frame:
    """``addresses`` are :class:`~contentrope.hf.addresses.Addresses`, or what PEFT has wrapped around them."""
    state = _state_before(segmenter, before, text)
    units, after = segmenter.advance(state, text.ids, valid=text.valid, ends=text.ends)
    columns = _with_new(before, text, units, after, addresses)
    zero = addresses.are_zero() and not competition
    if not (zero and not torch.is_grad_enabled()) and _completes_any(before, units):
        slot = units.unit - state.next_unit
        open_unit = None if before is None else _open_unit(before, state, segmenter.max_length, embedding)
        by_slot = addresses(embedding(text.ids), units, slot, open_unit)
        columns = replace(columns, angles=_addressed(columns, by_slot, state, after))
    rule = PairRule(
        query_unit=units.unit,
        key_unit=columns.unit,
        start=units.start,
        closes=units.closes,
        query_valid=units.valid if columns.padded else None,
        key_valid=columns.valid if columns.padded else None,
        query_memory=None,
        offset=columns.count - text.ids.shape[1],
    )
    turns = tuple(_turns(angles, units) for angles in columns.angles)
    return Frame(
        units=units,
        columns=columns,
        rule=rule,
        turns=turns,
        plain_mask=plain_mask,
        zero=zero,
        # Layers may run after a weight that is spread over processes has been let go of: they get a copy.
        competition=competition if addresses.exponents is None else addresses.exponents.clone(),
    )


def _state_before(segmenter: Segmenter, before: Columns | None, text: Text) -> SegmenterState:
    """The segmenter's state after the cached columns, read again after a rollback."""
    if before is not None and before.segmenter is not None:
        return before.segmenter
    state = segmenter.initial(len(text.ids), text.ids.device)
    if before is None:
        return state
    # The rule must not see tokens whose ends the caller gave: run by run, as they were read.
    changes = (before.given[0, 1:] != before.given[0, :-1]).nonzero()[:, 0] + 1
    edges = [0, *changes.tolist(), before.count]
    for begin, end in pairwise(edges):
        ends = before.closes[:, begin:end] if bool(before.given[0, begin]) else None
        valid = before.valid[:, begin:end] if before.padded else None
        _, state = segmenter.advance(state, before.ids[:, begin:end], valid=valid, ends=ends)
    return state


def _completes_any(before: Columns | None, units: Units) -> bool:
    """A single token after others mostly closes nothing: decoding pays for no address then."""
    if before is None or units.seq_length > 1 or torch.compiler.is_compiling():
        return True
    return bool(units.closes.any())


def _with_new(before: Columns | None, text: Text, units: Units, after: SegmenterState, addresses: Any) -> Columns:
    size, dtype = text.ids.shape, addresses.dtype
    new = Columns(
        ids=text.ids,
        valid=units.valid,
        unit=units.unit,
        local=units.local,
        closes=units.closes,
        given=torch.full_like(units.closes, text.ends is not None),
        angles=tuple(
            torch.zeros(*size, t.heads, len(t.frequency), dtype=dtype, device=text.ids.device)
            for t in addresses.turnings
        ),
        padded=text.valid is not None,
        segmenter=after,
    )
    return new if before is None else before.then(new)


def _open_unit(before: Columns, state: SegmenterState, longest: int, embedding: torch.nn.Module) -> OpenUnit:
    """The cached columns of the unit that goes on, embedded again: no sum has to be kept, or rolled back."""
    begin = max(before.count - longest + 1, 0)
    if not torch.compiler.is_compiling():
        is_open = state.next_local > 0
        begin = int(torch.where(is_open, state.start, before.count).min())
    belongs = (before.unit[:, begin:] == state.next_unit) & before.valid[:, begin:]
    return OpenUnit(embedding(before.ids[:, begin:]), before.local[:, begin:], belongs)


def _addressed(
    columns: Columns, by_slot: list[Tensor], before: SegmenterState, after: SegmenterState
) -> tuple[Float[Tensor, "batch columns kv_heads pairs"], ...]:
    """Angles of all columns, with those of the units that were completed in this call."""
    slot = columns.unit - before.next_unit
    completed = (slot >= 0) & (columns.unit < after.next_unit) & columns.valid
    slot = slot.clamp(min=0, max=by_slot[0].shape[1] - 1)
    return tuple(
        torch.where(
            completed[..., None, None],
            new.gather(1, slot[..., None, None].expand(-1, -1, *new.shape[2:])).to(old.dtype),
            old,
        )
        for old, new in zip(columns.angles, by_slot, strict=True)
    )


def _turns(angles: Float[Tensor, "batch columns kv_heads pairs"], units: Units) -> Turns:
    """An open unit's columns have no angles yet; of this call's queries only those that close a unit are turned."""
    key = rotation_of(angles)
    own = rotation_of(angles[:, -units.seq_length :])
    return Turns(own.only_where(units.closes), key)
