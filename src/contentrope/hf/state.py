"""The streaming state beside a model's keys and values: one more layer of the model's own KV cache.

As a layer it is reached by all that is done to a cache: reordering for beams, rollback, selecting rows, reset.
The model's own layers hold the keys of completed units at their address and those of the open unit at their local
positions; values never change. So a token that completes nothing is read by the model's own attention as it stands.
Rolling back across a completed unit rotates its keys back, which costs one rounding in the cache's dtype.

Shapes: batch, columns (tokens read so far, padding included; room for them is doubled when used up), kv_heads, pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from contentrope.errors import CacheError
from contentrope.hf.keys import Rotations, Span, rotate_back
from contentrope.hf.rotary import LayerRotary
from contentrope.rotary import rotation_of
from contentrope.units import SegmenterState, Units
from contentrope.window import WindowState, rolled_back

KINDS = (DynamicLayer, DynamicSlidingWindowLayer, StaticLayer, StaticSlidingWindowLayer)
"""Layers that hold keys as they were given."""
ROOM, MOST_UNWRITTEN = 64, 256


class _Facts(NamedTuple):
    """Of the columns of one call."""

    ids: Int[Tensor, "batch seq"]
    unit: Int[Tensor, "batch seq"]
    local: Int[Tensor, "batch seq"]
    begins: Int[Tensor, "batch seq"]
    """With a near window, the position at which its unit begins; else where it begins."""
    closes: Bool[Tensor, "batch seq"]
    valid: Bool[Tensor, "batch seq"]
    memory: Bool[Tensor, "batch seq"]
    given: bool
    """Whether units end there where the caller put their ends, instead of by the rule."""


class Columns:
    """Facts of every column. Those of a call count once it is committed: a failed one changes nothing."""

    def __init__(self, batch: int, device: torch.device) -> None:
        self.count = 0
        """Columns of finished calls."""
        self.padded = False
        self.has_memory = False
        self.facts = torch.zeros(len(_Facts._fields), batch, ROOM, dtype=torch.int64, device=device)
        self.written = self.noted = 0
        """Columns whose facts are written there, and those whose facts are known at all."""
        self.unwritten: list[_Facts] = []
        """Of the columns between, written together: they are read only when a unit is completed."""
        self.angles: tuple[Float[Tensor, "batch columns kv_heads pairs"], ...] = ()
        """For each rotary, the rotation of a column's keys: zero while its unit is open. Made when the first unit is
        completed."""
        self.segmenter: SegmenterState | None = None
        """None, as at first and after a rollback: to be found from the facts."""
        self.window: WindowState | None = None
        """Of models with a near window."""
        self.masks: dict[Hashable, Float[Tensor, "batch heads 1 columns"]] = {}
        """The competition bias of a single token, cached until the unit closes."""

    @property
    def batch(self) -> int:
        return self.facts.shape[1]

    def fact(self, name: str, begin: int = 0, end: int | None = None) -> Int[Tensor, "batch columns"]:
        self._write()
        return self.facts[_Facts._fields.index(name), :, begin : self.count if end is None else end]

    def note(
        self, ids: Int[Tensor, "batch seq"], units: Units, begins: Int[Tensor, "batch seq"] | None, *, ends_given: bool
    ) -> None:
        """Take the facts of a call's columns, copies of what is the caller's: who decodes may reuse a tensor."""
        if self.noted > self.count:  # those of a call that has failed
            self.unwritten = self.unwritten[:-1]
            self.written = min(self.written, self.count)
        if len(self.unwritten) == MOST_UNWRITTEN:
            self._write()
        begins = units.start if begins is None else begins
        closes = units.closes.clone() if ends_given else units.closes
        valid = units.valid.clone() if units.padded else units.valid
        memory = units.memory.clone() if units.has_memory else units.memory
        self.unwritten.append(_Facts(ids.clone(), units.unit, units.local, begins, closes, valid, memory, ends_given))
        self.noted = self.count + ids.shape[1]

    def commit(
        self,
        total: int,
        segmenter: SegmenterState,
        rotations: Rotations,
        masks: dict[Hashable, Tensor],
        window: WindowState | None,
        *,
        padded: bool,
        has_memory: bool,
    ) -> None:
        """Accept the columns of a finished call, and the angles that its keys were rotated by."""
        if rotations.span is not None:
            self._store_angles(rotations.span)
        self.masks, self.window = masks, window
        self.count, self.segmenter, self.padded = total, segmenter, self.padded or padded
        self.has_memory |= has_memory

    def _write(self) -> None:
        """The facts of all columns to the table, which is made longer where they do not fit."""
        if not self.unwritten:
            return
        self._leave_inference_mode()
        room = self.facts.shape[2]
        if self.noted > room:
            more = max(self.noted, 2 * room) - room
            self.facts = F.pad(self.facts, (0, more))
            self._change_angles(lambda x: F.pad(x, (0, 0, 0, 0, 0, more)))
        *tensors, given = zip(*self.unwritten, strict=True)
        facts = [torch.cat(of_calls, dim=1).to(torch.int64) for of_calls in tensors]
        lengths = (x.shape[1] for x in tensors[0])
        is_given = [torch.full_like(facts[0][:, :n], g) for n, g in zip(lengths, given, strict=True)]
        self.facts[:, :, self.written : self.noted] = torch.stack([*facts, torch.cat(is_given, dim=1)])
        self.written, self.unwritten = self.noted, []

    def _change_angles(self, change: Callable[[Tensor], Tensor]) -> None:
        self.angles = tuple(change(x) for x in self.angles)

    def _leave_inference_mode(self) -> None:
        """What was made there can be written to only there."""
        if torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
            return
        if self.facts.is_inference():
            self.facts = self.facts.clone()
            self._change_angles(torch.clone)

    def _store_angles(self, span: Span) -> None:
        self._write()
        room = self.facts.shape[2]
        if not self.angles:
            self.angles = tuple(x.new_zeros(x.shape[0], room, *x.shape[2:]) for x in span.angles)
        for kept, new in zip(self.angles, span.angles, strict=True):
            there, where = kept[:, span.begin : span.end], span.where
            new = new.detach()
            there.copy_(new if where is None else torch.where(where[..., None, None], new, there))

    def rows(self, index: Int[Tensor, "rows"]) -> None:
        self._write()
        index = index.to(self.facts.device)
        self.facts = self.facts.index_select(1, index)
        self._change_angles(lambda x: x.index_select(0, index))
        self.segmenter = self.segmenter.reorder(index) if self.segmenter is not None else None
        self.window = self.window.reorder(index) if self.window is not None else None
        self.masks = {}

    def truncate(self, count: int) -> Span | None:
        """Roll back to ``count`` columns; the keys to rotate back, of a unit that is open again, or near again."""
        self._write()
        self._leave_inference_mode()
        span = self._reopened(count) if self.window is None else self._near_again(self.window, count)
        self.count, self.segmenter, self.masks = count, None, {}
        self.written = self.noted = count
        for angles in self.angles:
            angles[:, count:] = 0.0
        return span

    def _reopened(self, count: int) -> Span | None:
        if not self.angles:
            return None
        open_unit = self.fact("unit", count - 1, count) + self.fact("closes", count - 1, count)
        reopened = self.fact("unit", 0, count) == open_unit
        if not bool(reopened.any()):
            return None
        begin = int(reopened.any(0).nonzero()[0])
        return self._back(begin, count, reopened[:, begin:])

    def _near_again(self, window: WindowState, count: int) -> Span | None:
        self.window, again = rolled_back(window, count, self.fact, has_memory=self.has_memory)
        if not self.angles or again is None or again.mask is None:
            return None
        return self._back(again.begin, count, again.mask)

    def _back(self, begin: int, count: int, where: Bool[Tensor, "batch columns"]) -> Span:
        """Keys from column ``begin`` to the last are rotated back; their angles are forgotten."""
        chosen = where[..., None, None]
        back = tuple(torch.where(chosen, -x[:, begin:count], 0.0) for x in self.angles)
        for angles in self.angles:
            angles[:, begin:count].masked_fill_(chosen, 0.0)
        return Span(begin, count, count, None, back, tuple(rotation_of(x) for x in back))


class ColumnsLayer(CacheLayerMixin):
    """The columns, as a cache layer that no attention module uses."""

    is_croppable = True
    supports_early_init = False

    def __init__(self, layers: list[Any], rotaries: dict[int, tuple[int, LayerRotary]]) -> None:
        super().__init__()
        # Masks are sized by the first layer of their kind, which this one, the last, must not be; and made by whether
        # all layers can be compiled: for a static cache they must show what is not filled yet.
        self.is_sliding = all(getattr(layer, "is_sliding", False) for layer in layers)
        self.is_compileable = all(layer.is_compileable for layer in layers)
        self.layers = layers
        """Of the cache, those of the model."""
        self.rotaries = rotaries
        """By the index of a layer the number of its rotary, and that itself; layers without positions are left out."""
        self.columns: Columns | None = None
        self.half_rotated = False
        """True while a call rotates keys; a call that fails in between leaves it so."""

    def begin(self, batch: int, device: torch.device) -> Columns:
        """The columns, for a call to go on from."""
        self.refuse_if_half_rotated()
        if self.columns is None:
            self.columns = Columns(batch, device)
        return self.columns

    def refuse_if_half_rotated(self) -> None:
        if self.half_rotated:
            raise CacheError(
                "a call with this cache did not finish: some of its keys are rotated; begin with a new cache"
            )

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise CacheError("this cache layer holds addresses, not keys: the model has more layers than attach() saw")

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.lazy_initialization(key_states, value_states)
        return key_states, value_states

    def get_seq_length(self) -> int:
        return 0 if self.columns is None else self.columns.count

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.columns, self.half_rotated = None, False

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last -n columns; before transformers 5.18 a positive number was the length to keep.

        The model's own layers, which come before this one, are cropped already.
        """
        if self.columns is None or not tokens_to_remove:
            return
        self.refuse_if_half_rotated()
        kept = self.columns.count + tokens_to_remove if tokens_to_remove < 0 else tokens_to_remove
        if kept <= 0:
            self.columns = None
        elif kept < self.columns.count and (span := self.columns.truncate(kept)) is not None:
            for index, (number, rotary) in self.rotaries.items():
                rotate_back(self.layers[index], span, number, rotary)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.columns is not None:
            self.columns.rows(indices.nonzero()[:, 0] if indices.dtype == torch.bool else indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.columns is not None:
            rows = torch.arange(self.columns.batch, device=self.columns.facts.device)
            self.columns.rows(rows.repeat_interleave(repeats))


def columns_layer(cache: Cache, layers: int, rotaries: dict[int, tuple[int, LayerRotary]]) -> ColumnsLayer:
    """The cache's own, made on first use behind the layers of the model."""
    if cache.layers and isinstance(cache.layers[-1], ColumnsLayer):
        return cache.layers[-1]
    # Some caches make their layers as keys come in: ours must stand behind all of them.
    while cache.layer_class_to_replicate is not None and len(cache.layers) < layers:
        cache.layers.append(cache.layer_class_to_replicate())
    others = sorted({type(layer).__name__ for layer in cache.layers if type(layer) not in KINDS})
    if others or cache.offloading:
        what = ", ".join(others) or "an offloaded cache"
        raise CacheError(
            f"keys are rotated where they lie when a unit is completed, which {what} does not allow; "
            "use a DynamicCache or a StaticCache that stays on its device"
        )
    made = ColumnsLayer(list(cache.layers), rotaries)
    cache.layers.append(made)
    return made
