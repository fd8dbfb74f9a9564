"""The streaming state beside a model's keys and values: one more layer of the model's own KV cache.

As a layer it is reached by all that is done to a cache: reordering for beams, rollback, selecting rows, reset.
The model's own layers hold the keys of completed units at their address and those of the open unit at their local
positions; values never change. So a token that completes nothing is read by the model's own attention as it stands.
Rolling back across a completed unit rotates its keys back, which costs one rounding in the cache's dtype.

Shapes: batch, columns (tokens read so far, padding included; room for them is doubled when used up), kv_heads, pairs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from contentrope.cache import Columns
from contentrope.errors import CacheError
from contentrope.hf.keys import Span, rotate_back
from contentrope.hf.rotary import LayerRotary

KINDS = (DynamicLayer, DynamicSlidingWindowLayer, StaticLayer, StaticSlidingWindowLayer)
"""Layers that hold keys as they were given."""


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
        self.is_assisted = False
        """Whether tokens are guessed and rolled back: then a call may pass the whole text, whatever is cached."""
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
        elif kept < self.columns.count and (back := self.columns.truncate(kept)) is not None:
            span = Span(back, kept, kept)
            for index, (number, rotary) in self.rotaries.items():
                rotate_back(self.layers[index], span, number, rotary)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.columns is not None:
            self.columns.rows(indices.nonzero()[:, 0] if indices.dtype == torch.bool else indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.columns is not None:
            rows = torch.arange(self.columns.batch, device=self.columns.device)
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
