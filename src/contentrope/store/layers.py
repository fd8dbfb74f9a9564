"""A cache layer with room behind its keys and values: a token is written there, instead of everything being copied.

Shapes: columns, those that are there; room, those and as many more as fit into the same memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.cache_utils import DynamicLayer

ROOM, SHARE = 64, 16
"""There is room for so many columns, or for one in so many of those that are there."""

States = Float[Tensor, "rows kv_heads columns head_dim"]
Room = Float[Tensor, "rows kv_heads room head_dim"]


def with_room(columns: int) -> int:
    """How many columns to make room for."""
    return columns + max(ROOM, columns // SHARE)


class RoomyLayer(DynamicLayer):
    """As ``DynamicLayer``, which copies everything with every token."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._own: tuple[int, ...] = ()
        """Where the memory begins that this layer may write to. What else it is given may be somebody else's too."""

    def take(self, keys: Room, values: Room, columns: int) -> tuple[States, States]:
        """Hold the first columns of tensors that are the layer's own from now on."""
        self._own = tuple(x.untyped_storage().data_ptr() for x in (keys, values))
        held = keys[:, :, :columns], values[:, :, :columns]
        self.keys, self.values = held
        return held

    def shorten(self, columns: int) -> None:
        """Hold the first columns, with the room that so many get: where they lie does not depend on what was behind."""
        rooms = [x if self._whole(x).shape[2] == with_room(columns) else _copied(x, columns) for x in self._held()]
        self.take(rooms[0], rooms[1], columns)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        # A backward pass may need what is there as it is.
        if torch.is_grad_enabled() or not self._takes(key_states) or not self._takes(value_states):
            found: tuple[Tensor, Tensor] = super().update(key_states, value_states, *args, **kwargs)
            return found
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        count, total = self.get_seq_length(), self.get_seq_length() + key_states.shape[2]
        keys, values = self._room(self.keys, total, key_states), self._room(self.values, total, value_states)
        for room, states in ((keys, key_states), (values, value_states)):
            room[:, :, count:total].copy_(states)
        return self.take(keys, values, total)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._rows(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._rows(lambda x: x[indices.to(x.device)])

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._rows(lambda x: x.repeat_interleave(repeats, dim=0))

    def _rows(self, change: Callable[[Tensor], Tensor]) -> None:
        """Copies of rows, with the room behind them."""
        if count := self.get_seq_length():
            keys, values = self._held()
            self.take(change(self._whole(keys)), change(self._whole(values)), count)

    def _takes(self, states: States) -> bool:
        """Whether they go behind what is there without becoming others."""
        if not self.is_initialized or not self.get_seq_length():
            return True
        keys, _ = self._held()
        return states.dtype == keys.dtype and states.shape[:2] == keys.shape[:2]

    def _held(self) -> tuple[States, States]:
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values

    def _room(self, held: Any, columns: int, like: Tensor) -> Room:
        """Memory for so many columns that begins with those held: where they are, if it may be and they fit."""
        if not held.numel():
            return like.new_empty(*like.shape[:2], with_room(columns), like.shape[3])
        room = self._whole(held)
        may_write = torch.is_inference_mode_enabled() or not room.is_inference()
        return room if may_write and columns <= room.shape[2] else _copied(held, held.shape[2], columns)

    def _whole(self, held: States) -> Room:
        """What is held with the room behind it; without, if there is none or it is not this layer's."""
        if not held.numel() or held.untyped_storage().data_ptr() not in self._own or held.storage_offset():
            return held
        rows, heads, columns, dim = held.shape
        room = held.untyped_storage().nbytes() // (rows * heads * dim * held.element_size())
        strides = heads * room * dim, room * dim, dim, 1
        fits = all(a == b for a, b, size in zip(held.stride(), strides, held.shape, strict=True) if size > 1)
        return held.as_strided((rows, heads, room, dim), strides) if fits and room >= columns else held


def _copied(held: States, columns: int, more: int = 0) -> Room:
    """The first columns in memory of their own, with the room that so many get, or ``more``."""
    made = held.new_empty(*held.shape[:2], with_room(max(columns, more)), held.shape[3])
    made[:, :, :columns].copy_(held[:, :, :columns])
    return made
