"""One call as all its layers see it: units, who reads which version of a key, and the turns towards addresses.

Made before the first layer and handed to every layer with the call, never kept in a shared place: with gradient
checkpointing layers run again after later calls have begun.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from contentrope.anchors import Anchors, UnitsBefore
from contentrope.attention import PairRule
from contentrope.attention.fused import FusedRotations as Turns
from contentrope.attention.fused import address_rotations as turns_at_place
from contentrope.attention.pairs import Spared, no_competition
from contentrope.checks import can_be_read
from contentrope.hf.keys import Window
from contentrope.hf.reading import Embed, Reading, Text, anchored, completing, window_of
from contentrope.hf.rotary import Turning
from contentrope.hf.state import Columns, ColumnsLayer, Standing
from contentrope.rotary import Rotation
from contentrope.units import Segmenter, SegmenterState, Terminators, Units


@dataclass(frozen=True, kw_only=True)
class Frame:
    units: Units
    after: SegmenterState
    rule: PairRule
    store: ColumnsLayer | None
    """Of the cache that the call goes on with."""
    window: Window | None
    """The columns whose keys are turned; None: the call completes no unit, or all addresses are zero."""
    queries: tuple[Rotation, ...]
    """For each turning of the model, what queries are turned by: those that close a unit carry its address."""
    places: tuple[Rotation, ...]
    """Likewise, what the call's keys are turned by while their unit is open, if it begins at an anchor."""
    recent: tuple[UnitsBefore, ...] | None
    """Where anchors may lie after the call."""
    standing: Standing | None
    """Where the open unit stands then, if it is still the same."""
    turns: tuple[Turns, ...]
    """Instead, where one kernel turns queries and keys."""
    plain_mask: bool
    """Whether the mask is causal with padding and nothing else, so that a backend of the core can stand in."""
    zero: bool
    """Whether all addresses are zero and units do not compete: then the model's own attention says the same."""
    competition: float | Float[Tensor, "layers heads"]
    masks: dict[Hashable, Tensor] | None
    """What competition takes, kept for the next tokens of the unit; None: made anew in every call."""
    as_it_stands: bool
    """Whether the model's own attention does all there is to do, given the keys that the cache holds."""
    only_masked: bool
    """Whether it does so with another mask: a single token that completes nothing."""
    shared: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Keys, local and addressed, of the layers whose keys other layers read too."""

    @property
    def offset(self) -> int:
        """Columns read before this call."""
        return self.rule.offset

    @property
    def total(self) -> int:
        """Columns read so far, this call's among them."""
        return self.rule.offset + self.rule.query_count

    def competition_in(self, layer: int) -> float | Float[Tensor, "heads"]:
        return self.competition[layer] if isinstance(self.competition, Tensor) else self.competition

    def positions(self, given: Int[Tensor, "rows seq"], gate: float) -> Tensor:
        """What the rotary embedding is told instead of the model's own positions: ``local + gate * start``."""
        if gate == 1.0:
            return given
        local = self.units.local.to(given.device)
        return local if gate == 0.0 else local + gate * (given - local)

    def commit(self) -> None:
        """The cache remembers the call."""
        if self.store is not None and self.store.columns is not None:
            self.store.columns.commit(
                self.total,
                self.after,
                self.window,
                recent=self.recent,
                standing=self.standing,
                masks=self.masks if self.masks and self.units.ends_any is False else {},
                padded=self.units.padded,
            )
            self.store.half_turned = False


def frame_of(
    text: Text,
    store: ColumnsLayer | None,
    segmenter: Segmenter,
    addresses: Any,
    embed: Embed,
    *,
    plain_mask: bool,
    competition: float = 0.0,
    by_kernel: tuple[Turning, ...] = (),
    anchors: Anchors | None = None,
) -> Frame:
    """``addresses`` are :class:`~contentrope.hf.addresses.Addresses`, or what PEFT has wrapped around them.

    ``by_kernel``: the turnings of the model, if queries and keys of a call without a cache are turned by one kernel.
    """
    columns = None if store is None else store.begin(len(text.ids), text.ids.device)
    before = _state_before(segmenter, columns, text)
    known = _known(text, columns, segmenter)
    units, after = segmenter.advance(before, text.ids, valid=text.valid, ends=text.ends, known=known)
    if columns is not None:
        columns.note(text.ids, units, ends_given=text.ends is not None)
    # A cache that holds addresses answers for the weights: decoding need not ask them at every token.
    has_addresses = columns is not None and bool(columns.angles)
    zero = not has_addresses and not competition and anchors is None and addresses.are_zero()
    is_untouched = zero and not torch.is_grad_enabled()
    # Layers may run after a weight that is spread over processes has been let go of: they get a copy.
    exponents = competition if addresses.exponents is None else addresses.exponents.clone()
    window: Window | None = None
    queries: tuple[Rotation, ...] = ()
    turns: tuple[Turns, ...] = ()
    places: tuple[Rotation, ...] = ()
    recent: tuple[UnitsBefore, ...] | None = None
    spared: Spared | None = None
    standing: Standing | None = None
    completes = _completes_any(columns, units)
    reading = Reading(text, units, before, after, columns, segmenter.max_length)
    if anchors is not None:
        window, queries, places, spared, recent, standing = anchored(
            reading, addresses, embed, anchors, completes=completes
        )
    elif not is_untouched and completes:
        window = window_of(completing(reading, addresses, embed))
        if by_kernel and window.completed is None:
            turns = tuple(
                turns_for(angles, turning, units) for angles, turning in zip(window.angles, by_kernel, strict=True)
            )
        else:
            queries = tuple(_of_queries(rotation, units) for rotation in window.rotations)
    rule = _rule(columns, units, spared)
    own_does_it = is_untouched or (units.seq_length == 1 and no_competition(exponents))
    return Frame(
        units=units,
        after=after,
        rule=rule,
        store=store,
        window=window,
        queries=queries,
        places=places,
        recent=recent,
        standing=standing,
        turns=turns,
        plain_mask=plain_mask,
        zero=zero,
        competition=exponents,
        masks=_masks(columns, units, rule),
        as_it_stands=own_does_it and window is None and rule.query_memory is None,
        only_masked=units.seq_length == 1 and window is None and not zero,
    )


def _state_before(segmenter: Segmenter, columns: Columns | None, text: Text) -> SegmenterState:
    """The segmenter's state after the cached columns, read again after a rollback."""
    if columns is not None and columns.segmenter is not None:
        return columns.segmenter
    state = segmenter.initial(len(text.ids), text.ids.device)
    if columns is None or not columns.count:
        return state
    # The rule must not see tokens whose ends the caller gave: run by run, as they were read.
    given = columns.fact("given")[0]
    edges = [0, *((given[1:] != given[:-1]).nonzero()[:, 0] + 1).tolist(), columns.count]
    for begin, end in pairwise(edges):
        ends = columns.fact("closes", begin, end).bool() if bool(given[begin]) else None
        valid = columns.fact("valid", begin, end).bool() if columns.padded else None
        _, state = segmenter.advance(state, columns.fact("ids", begin, end), valid=valid, ends=ends)
    return state


def _is_next_token(columns: Columns | None, seq: int) -> bool:
    """A single token after others: decoding, which should pay for as little as it can."""
    return columns is not None and columns.count > 0 and seq == 1 and not torch.compiler.is_compiling()


def _known(text: Text, columns: Columns | None, segmenter: Segmenter) -> list[int] | None:
    """The ids of single tokens after others as numbers: a device is then asked for them, and for nothing else."""
    by_rule = text.valid is None and text.ends is None and isinstance(segmenter.rule, Terminators)
    is_asked = by_rule and _is_next_token(columns, text.ids.shape[1]) and can_be_read(text.ids)
    return text.ids[:, 0].tolist() if is_asked else None


def _masks(columns: Columns | None, units: Units, rule: PairRule) -> dict[Hashable, Tensor] | None:
    """Those that are kept, for a single token after others that sees all of them."""
    sees_all = rule.query_memory is None and not torch.is_grad_enabled()
    return dict(columns.masks) if columns and sees_all and _is_next_token(columns, units.seq_length) else None


def _completes_any(columns: Columns | None, units: Units) -> bool:
    """A single token after others mostly closes nothing: decoding pays for no address then."""
    return not _is_next_token(columns, units.seq_length) or units.completes_any()


def _rule(columns: Columns | None, units: Units, spared: Spared | None) -> PairRule:
    if columns is None:
        return replace(PairRule.among(units), spared=spared)
    # A single token is read by the model's own attention, which knows all about its keys.
    many, total = units.seq_length > 1, columns.count + units.seq_length
    padded = many and (columns.padded or units.padded)
    return PairRule(
        query_unit=units.unit,
        key_unit=columns.fact("unit", 0, total) if many else None,
        start=units.start,
        closes=units.closes,
        query_valid=units.valid if padded else None,
        key_valid=columns.fact("valid", 0, total).bool() if padded else None,
        query_memory=units.memory if _has_memory(units) else None,
        spared=spared,
        offset=columns.count,
    )


def _has_memory(units: Units) -> bool:
    """Whether queries may belong to memory units. A single token mostly comes after the last of them."""
    if not units.has_memory or units.seq_length > 1 or torch.compiler.is_compiling():
        return units.has_memory
    return bool(units.memory.any())


def turns_for(angles: Float[Tensor, "batch seq kv_heads pairs"], turning: Turning, units: Units) -> Turns:
    """``angles`` are those of each token's unit, forwards as the model turns."""
    return turns_at_place(-angles if turning.backwards else angles, units.closes)


def _of_queries(rotation: Rotation, units: Units) -> Rotation:
    """Of this call's tokens, those that close a unit are turned as its keys are."""
    own = (None if x is None else x[:, -units.seq_length :] for x in rotation)
    return Rotation(*own).only_where(units.closes)  # type: ignore[arg-type]
