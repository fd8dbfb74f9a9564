"""What an adapter remembers beside a model's keys and values: one more layer of the model's own cache.

As a layer it is reached by all that is done to a cache: reordering for beams, rollback, selecting rows, reset.
Keys stay in the cache as the model wrote them, at their local positions; addresses lie here, one per column, and meet
the keys when these are read. So values and keys never change, and rolling back is exact.

Shapes: batch, columns (tokens read so far, padding included), kv_heads, pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from contentrope.errors import CacheError
from contentrope.units import SegmenterState

FACTS = ("ids", "valid", "unit", "local", "closes", "given")


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Facts of every column. Never written in place: a failed call changes nothing."""

    ids: Int[Tensor, "batch columns"]
    valid: Bool[Tensor, "batch columns"]
    unit: Int[Tensor, "batch columns"]
    local: Int[Tensor, "batch columns"]
    closes: Bool[Tensor, "batch columns"]
    given: Bool[Tensor, "batch columns"]
    """Whether the caller said where units end there, instead of the rule."""
    angles: tuple[Float[Tensor, "batch columns kv_heads pairs"], ...]
    """For each turning of the model, the address of the column's unit; zero while the unit is open."""
    padded: bool = False
    segmenter: SegmenterState | None = None
    """None: to be found again from the facts, as after a rollback."""

    @property
    def count(self) -> int:
        return self.ids.shape[1]

    def then(self, new: Columns) -> Columns:
        """These columns and those of a call after them."""
        parts: dict[str, Any] = {n: torch.cat((getattr(self, n), getattr(new, n)), dim=1) for n in FACTS}
        angles = tuple(torch.cat(both, dim=1) for both in zip(self.angles, new.angles, strict=True))
        return replace(new, **parts, angles=angles, padded=self.padded or new.padded)

    def rows(self, index: Int[Tensor, "rows"]) -> Columns:
        return replace(
            self._each(lambda x: x.index_select(0, index.to(x.device))),
            segmenter=self.segmenter.reorder(index) if self.segmenter is not None else None,
        )

    def first(self, count: int) -> Columns | None:
        """As if no more had been read: a unit completed later is open again."""
        if count <= 0:
            return None
        cut = self._each(lambda x: x[:, :count])
        open_unit = cut.unit[:, -1:] + cut.closes[:, -1:]
        is_open = (cut.unit == open_unit)[..., None, None]
        return replace(cut, angles=tuple(x.masked_fill(is_open, 0.0) for x in cut.angles), segmenter=None)

    def _each(self, change: Any) -> Columns:
        changed = {name: change(getattr(self, name)) for name in FACTS}
        return replace(self, **changed, angles=tuple(change(x) for x in self.angles))


class ColumnsLayer(CacheLayerMixin):
    """The columns, in the form of a cache layer that no attention module ever asks for."""

    is_croppable = True
    supports_early_init = False

    def __init__(self, *, is_sliding: bool, is_compileable: bool) -> None:
        super().__init__()
        # Masks are sized by the first layer of their kind, which this one, the last, must not be; and made by whether
        # all layers can be compiled: for a static cache they must show what is not filled yet.
        self.is_sliding = is_sliding
        self.is_compileable = is_compileable
        self.columns: Columns | None = None

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
        self.columns = None

    def offload(self) -> None:
        """Small, and needed at every call: stays where it is."""

    def prefetch(self) -> None:
        """Never offloaded."""

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last -n columns; before transformers 5.18 a positive number was the length to keep."""
        if self.columns is not None and tokens_to_remove:
            kept = self.columns.count + tokens_to_remove if tokens_to_remove < 0 else tokens_to_remove
            self.columns = self.columns.first(kept) if kept < self.columns.count else self.columns

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.columns is not None:
            if indices.dtype == torch.bool:
                indices = indices.nonzero()[:, 0]
            self.columns = self.columns.rows(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.columns is not None:
            rows = torch.arange(len(self.columns.ids), device=self.columns.ids.device)
            self.columns = self.columns.rows(rows.repeat_interleave(repeats))


def columns_layer(cache: Cache, layers: int) -> ColumnsLayer:
    """The cache's own, made on first use behind the layers of the model."""
    for layer in cache.layers:
        if isinstance(layer, ColumnsLayer):
            return layer
    # Some caches make their layers as keys come in: ours must stand behind all of them.
    while cache.layer_class_to_replicate is not None and len(cache.layers) < layers:
        cache.layers.append(cache.layer_class_to_replicate())
    made = ColumnsLayer(is_sliding=all(cache.is_sliding), is_compileable=cache.is_compileable)
    cache.layers.append(made)
    return made
