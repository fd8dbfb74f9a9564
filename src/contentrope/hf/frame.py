"""One call: what the decoder is called with, and what all its layers see of it.

A frame holds the units, who reads which version of a key, and the rotations towards addresses. It is made before the
first layer and handed to every layer with the call, never kept in a shared place: with gradient checkpointing layers
run again after later calls have begun.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.cache_utils import Cache

from contentrope.attention import PairRule
from contentrope.attention.pairs import no_competition
from contentrope.cache import Columns, StreamState
from contentrope.errors import CacheError, InputError
from contentrope.hf.keys import Rotations
from contentrope.hf.reading import Reading, Text, completed, windowed
from contentrope.hf.state import ColumnsLayer
from contentrope.units import SegmenterState, Terminators, Units
from contentrope.units.table import can_be_read, may_sync
from contentrope.window import Moved, begins_of, initial_window, move

if TYPE_CHECKING:
    from contentrope.hf.adapter import Adapter


@dataclass(frozen=True, kw_only=True)
class Frame:
    units: Units
    after: SegmenterState
    rule: PairRule
    store: ColumnsLayer | None
    """Of the cache that the call goes on with."""
    rotations: Rotations
    plain_mask: bool
    """Whether the mask is causal with padding and nothing else, so that a backend of the core can stand in."""
    zero: bool
    """Whether all addresses are zero and units do not compete: then the model's own attention gives the same."""
    competition: float | Float[Tensor, "layers heads"]
    masks: dict[Hashable, Tensor] | None
    """The competition bias, cached until the unit closes; None: not cached."""
    as_it_stands: bool
    """Whether the model's own attention suffices, on the keys that the cache holds."""
    only_masked: bool
    """Whether it does with another mask: a single token that completes nothing."""
    placed: Int[Tensor, "batch seq"] | None = None
    """With a near window and padding or memory: positions to rotate by instead of the model's own."""
    moved: Moved | None = None
    """With a near window and a cache: what the call does to it."""
    idle: tuple[Tensor, ...] = ()
    """Weights that are trained and of which this text needs none: processes that train together expect a gradient of
    each, zero if need be."""
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
        """Positions for the rotary embedding instead of the model's own: ``local + gate * start``; within a near window
        positions are global."""
        if self.placed is not None:
            return self.placed.to(given.device)
        if gate == 1.0 or self.rule.near is not None:
            return given
        local = self.units.local.to(given.device)
        return local if gate == 0.0 else local + gate * (given - local)

    def commit(self) -> None:
        """The cache accepts the call."""
        if self.store is None or self.store.columns is None:
            return
        state = StreamState(
            segmenter=self.after,
            window=None if self.moved is None else self.moved.after,
            biases=self.masks if self.masks and self.units.ends_any is False else {},
        )
        columns, span, units = self.store.columns, self.rotations.span, self.units
        if span is not None:
            columns.keep_angles(span.rotated)
        columns.commit(units.seq_length, state, padded=units.padded, has_memory=units.has_memory)
        self.store.half_rotated = False


def frame_of(adapter: Adapter, text: Text, store: ColumnsLayer | None, *, plain_mask: bool) -> Frame:
    segmenter, addresses = adapter.segmenter, adapter.addresses
    columns = None if store is None else store.begin(len(text.ids), text.ids.device)
    # Decoding, which should pay for as little as it can.
    is_next_token = columns is not None and columns.count > 0 and text.ids.shape[1] == 1
    is_next_token = is_next_token and not torch.compiler.is_compiling()
    known = None
    if is_next_token and text.valid is None and text.ends is None and isinstance(segmenter.rule, Terminators):
        # A host copy of the ids, the only GPU sync of the token.
        known = text.ids[:, 0].tolist() if can_be_read(text.ids) else None
    if columns is None:
        before = segmenter.initial(len(text.ids), text.ids.device)
    else:
        before = columns.segmenter_state(segmenter)
    if text.memory is not None:
        segmenter = segmenter.marked_by_mask()
    masks = {"valid": text.valid, "ends": text.ends, "memory": text.memory}
    units, after = segmenter.advance(before, text.ids, **masks, known=known)
    begins, moved = _note(adapter.window, columns, text, units)
    # A cache that holds addresses shows that the weights are not zero: no GPU sync for every decoded token.
    has_addresses = columns is not None and bool(columns.angles)
    width = adapter.window
    zero = not width and not has_addresses and not adapter.competition and addresses.are_zero()
    total = units.offset + units.seq_length
    all_near = bool(width) and total <= width and not units.has_memory
    is_untouched = all_near or (zero and not torch.is_grad_enabled())
    # A copy: layers may run after a weight that is spread over processes has been freed.
    exponents = adapter.competition if addresses.exponents is None else addresses.exponents.clone()
    # A single token mostly closes nothing: decoding pays for no address then.
    completes = not is_next_token or units.completes_any()
    reading = Reading(text, units, before, after, columns, addresses, adapter.embed, width, begins, moved)
    rotations = Rotations()
    if width and not is_untouched:
        rotations = windowed(reading, adapter.by_kernel() if store is None else ())
    elif not is_untouched and completes:
        rotations = completed(reading, adapter.by_kernel() if store is None else ())
    rule = _rule(columns, units, width, moved)
    own_does_it = is_untouched or (not width and units.seq_length == 1 and no_competition(exponents))
    keeps_masks = is_next_token and rule.query_memory is None and not torch.is_grad_enabled()
    return Frame(
        units=units,
        after=after,
        rule=rule,
        store=store,
        rotations=rotations,
        plain_mask=plain_mask,
        zero=zero,
        competition=exponents,
        masks=dict(columns.state.biases) if columns is not None and keeps_masks else None,
        as_it_stands=own_does_it and rotations.span is None and rule.query_memory is None,
        only_masked=not width and units.seq_length == 1 and rotations.span is None and not zero,
        placed=_placed(units, begins),
        moved=moved,
        idle=_trained(adapter) if all_near and torch.is_grad_enabled() else (),
    )


def _trained(adapter: Adapter) -> tuple[Tensor, ...]:
    return tuple(weight for weight in adapter.trained.parameters() if weight.requires_grad)


def _note(
    width: int, columns: Columns | None, text: Text, units: Units
) -> tuple[Int[Tensor, "batch seq"] | None, Moved | None]:
    """Where units begin, in positions, and what a call does to the near window; its facts are taken for that."""
    if not width:
        if columns is not None:
            columns.note(text.ids, units, **_said(text))
        return None, None
    state = None if columns is None else columns.state.window
    if state is None:
        state = initial_window(width, len(text.ids), text.ids.device)._replace(positions=_first_position(text))
    begins = begins_of(units, state.positions)
    if columns is None:
        return begins, None
    columns.note(text.ids, units, begins, **_said(text))
    return begins, move(state, units, begins, columns.fact, has_memory=units.has_memory)


def _said(text: Text) -> dict[str, Any]:
    """What the caller said of the columns."""
    return {"valid": text.valid, "ends_given": text.ends is not None, "memory_given": text.memory is not None}


def _first_position(text: Text) -> Int[Tensor, "batch 1"]:
    """Of the first token that is no padding, as the caller counts, or by column."""
    rows = len(text.ids)
    if text.valid is None:
        first = torch.zeros(rows, 1, dtype=torch.int64, device=text.ids.device)
    else:
        first = text.valid.long().argmax(1, keepdim=True)
    given = text.positions
    return first if given is None or given.ndim != 2 else given.expand(rows, -1).gather(1, first)


def _placed(units: Units, begins: Tensor | None) -> Int[Tensor, "batch seq"] | None:
    if begins is None or not (units.padded or units.has_memory):
        return None
    return begins.clamp(min=0) + units.local


def _rule(columns: Columns | None, units: Units, width: int, moved: Moved | None) -> PairRule:
    if columns is None:
        return PairRule.among(units, width)
    # A single token goes to the model's own attention, which needs no units of keys.
    many, total, has_memory = units.seq_length > 1, columns.count + units.seq_length, units.has_memory
    if has_memory and not many and not torch.compiler.is_compiling():  # it mostly comes after the last memory unit
        has_memory = bool(units.memory.any())
    padded = many and (columns.padded or units.padded)
    return PairRule(
        query_unit=units.unit,
        key_unit=columns.fact("unit", 0, total) if many else None,
        start=units.start,
        closes=units.closes,
        query_valid=units.valid if padded else None,
        key_valid=columns.fact("valid", 0, total).bool() if padded else None,
        query_memory=units.memory if has_memory else None,
        near=None if moved is None else moved.near,
        window=width,
        offset=columns.count,
    )


# --- what a decoder is called with ---


def ids_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    """The token ids of a call, and all its arguments by name."""
    names = ("input_ids", "attention_mask", "position_ids", "past_key_values")
    kwargs = {**dict(zip(names, args, strict=False)), **kwargs}
    ids = kwargs.get("input_ids")
    if ids is None:
        raise InputError("units are read from token ids: pass input_ids, not inputs_embeds alone")
    if kwargs.get("output_attentions"):
        raise InputError("output_attentions=True: attention over units does not keep its weights")
    if kwargs.get("is_causal") is False:
        raise InputError("is_causal=False reads in both directions; addresses are for causal decoders")
    return ids, kwargs


def widen(cache: Cache | None, columns: Columns | None, rows: int) -> None:
    """Repeat the rows of stored units for each beam, as ``generate`` does with tokens alone."""
    floor = None if columns is None else columns.floor
    if cache is None or columns is None or floor is None or columns.count != floor.count:
        return
    if 0 < columns.batch < rows and rows % columns.batch == 0:
        cache.batch_repeat_interleave(rows // columns.batch)


def unread(ids: Tensor, kwargs: dict[str, Any], store: ColumnsLayer | None) -> tuple[Tensor, dict[str, Any]]:
    """The call without the tokens of stored units, where it passes the whole text, as its mask tells.

    ``generate`` leaves out what is cached, but not in assisted decoding, where it may drop the mask too.
    """
    mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
    columns = None if store is None else store.columns
    floor = None if columns is None else columns.floor
    if store is None or columns is None or floor is None or not 0 < floor.count == columns.count < ids.shape[1]:
        return ids, kwargs
    is_whole = store.is_assisted
    if mask is not None:
        is_whole = isinstance(mask, Tensor) and mask.ndim == 2 and mask.shape[1] == ids.shape[1]
    if not is_whole or not torch.equal(ids[:, : floor.count], columns.fact("ids").to(ids)):
        return ids, kwargs
    if positions is not None and positions.shape[-1] == ids.shape[1]:
        kwargs = {**kwargs, "position_ids": positions[..., floor.count :]}
    return ids[:, floor.count :], kwargs


def padding_of(mask: Any, ids: Tensor, offset: int) -> tuple[Tensor | None, bool]:
    """Which of the new tokens are no padding (None: all of them), and whether the mask holds nothing else."""
    if isinstance(mask, Mapping):  # prepared for each kind of layer
        prepared = {name: m for name, m in mask.items() if m is not None}
        mask = next((m for name, m in prepared.items() if "full" in name), next(iter(prepared.values()), None))
        if mask is None:
            return None, False
    if mask is None:
        return None, True
    end = offset + ids.shape[1]
    if mask.ndim == 2:
        if mask.shape[1] < end:
            raise InputError(f"attention_mask covers {mask.shape[1]} tokens, the call ends at {end}: pass all of them")
        valid = mask[:, offset:end].bool()
        # In training on a GPU a mask is taken to hide something, which avoids a sync.
        all_valid = may_sync(valid) and bool(valid.all())
        return (None if all_valid else valid), True
    # A mask over pairs: padding does not see itself.
    columns = torch.arange(offset, end, device=mask.device) - max(end - mask.shape[-1], 0)
    itself = mask[:, 0].gather(2, columns[None, :, None].expand(len(mask), -1, 1))[..., 0]
    valid = itself if itself.dtype == torch.bool else itself == 0
    return valid.expand(len(ids), -1), False


def check_cache(cache: Cache, before: Columns | None, ids: Tensor) -> None:
    """Refuse a cache whose keys and addresses are out of step."""
    if torch.compiler.is_compiling():
        return
    held, known = int(cache.get_seq_length()), 0 if before is None else before.count
    if held != known:
        raise CacheError(
            f"the cache holds {held} tokens, of which the addresses know {known}: it was filled without them, or a "
            "call did not finish; begin with a new cache"
        )
    if before is not None and before.batch != len(ids):
        raise CacheError(f"the cache has {before.batch} rows, input_ids {len(ids)}; begin with a new cache")


def refuse_packed(kwargs: Mapping[str, Any], cache: Cache | None) -> None:
    positions = kwargs.get("position_ids")
    if positions is None or kwargs.get("attention_mask") is not None or cache is not None:
        return
    if can_be_read(positions) and bool((positions.diff(dim=-1) != 1).any()):
        raise InputError(
            "position_ids start again: several documents in one row are not supported; give each a row, with padding"
        )
