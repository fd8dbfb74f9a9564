"""The KV cache of the library's own models: keys and values per layer, beside the streaming state of their columns.

Keys of completed units are stored addressed, keys of the open unit local; when a unit completes its keys are rotated
once, in place, and values never change. With a near window keys are rotated when their unit leaves it
(:mod:`contentrope.window`). All that a unit is made of lies in its columns (ids, marks, keys, values, address), so
units can be cut out or moved.

Shapes: batch, columns (capacity: room, doubled when used up), kv_heads, head_dim, pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from contentrope.cache.columns import Columns, Rotated, StreamState
from contentrope.config import PairLayout
from contentrope.errors import CacheError, InputError
from contentrope.rotary import Rotation, rotate


class CacheShape(NamedTuple):
    """What a cache and a model must agree on."""

    fingerprint: str
    layers: int
    kv_heads: int
    head_dim: int
    pairs: int
    pair_layout: PairLayout
    dtype: torch.dtype


@dataclass(frozen=True, kw_only=True)
class ModelState(StreamState):
    """What the next token of one of the library's own models depends on."""

    tokens: Int[Tensor, "batch"]
    """Tokens read, padding not counted."""
    seed: Int[Tensor, "batch"]
    open_total: Float[Tensor, "batch dim"] | None = None
    """The open unit's running descriptor sum. None: to be brought up to date from the ids when the unit goes on in a
    chunk or completes, as after a rollback, and while single tokens come in that do not need it."""

    def reorder(self, index: Int[Tensor, "rows"]) -> ModelState:
        total = None if self.open_total is None else self.open_total[index]
        state = cast(ModelState, super().reorder(index))
        return replace(state, tokens=self.tokens[index], seed=self.seed[index], open_total=total)


class Cache:
    """Made by :meth:`contentrope.Transformer.new_cache`; pass it to every call that continues the same rows."""

    def __init__(self, shape: CacheShape, state: ModelState, *, capacity: int, max_tokens: int | None = None) -> None:
        self.shape = shape
        self.max_tokens = max_tokens
        # True while columns or layers are out of step with each other: what dies in between leaves it so.
        self.interrupted = False
        batch, device = len(state.tokens), state.tokens.device
        self.columns = Columns(batch, device, state, room=capacity)
        size = (shape.layers, batch, shape.kv_heads, capacity, shape.head_dim)
        self._hold_keys(torch.zeros(size, dtype=shape.dtype, device=device))
        self.values = [torch.zeros(size[1:], dtype=shape.dtype, device=device) for _ in range(shape.layers)]
        self.extras: dict[tuple[str, int], Tensor] = {}
        """By name and layer, what a scheme keeps of every column beside its key and value; sized as they are."""
        self.derived: dict[int, Tensor] = {}
        """By layer, what a scheme computed from all columns so far. Rolling back drops it: to be computed anew."""

    def _hold_keys(self, keys: Float[Tensor, "layers batch kv_heads capacity head_dim"]) -> None:
        """All layers in one tensor, so that a completed unit's keys are rotated at once; views of it by layer."""
        self._all_keys = keys
        self.keys = [keys[layer] for layer in range(len(keys))]

    @property
    def batch_size(self) -> int:
        return self.columns.batch

    @property
    def length(self) -> int:
        """Columns read so far."""
        return self.columns.count

    @property
    def capacity(self) -> int:
        return self._all_keys.shape[3]

    @property
    def state(self) -> ModelState:
        return cast(ModelState, self.columns.state)

    def fact(self, name: str, begin: int = 0, end: int | None = None) -> Int[Tensor, "batch columns"]:
        """See :meth:`Columns.fact`."""
        return self.columns.fact(name, begin, end)

    def reserve(self, columns: int) -> None:
        """Make room for this many columns in all; doubles, so that growth copies each column a few times at most."""
        if columns <= self.capacity:
            return
        room = max(columns, 2 * self.capacity) - self.capacity
        self._hold_keys(torch.nn.functional.pad(self._all_keys, (0, 0, 0, room)))
        self.values = [torch.nn.functional.pad(x, (0, 0, 0, room)) for x in self.values]
        self.extras = {name: torch.nn.functional.pad(x, (0, 0, 0, room)) for name, x in self.extras.items()}
        self.columns.reserve(self.capacity)

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values (batch, kv_heads, new, head_dim) of new columns; views of all columns so far."""
        self.interrupted = True
        end = self.length + key.shape[2]
        self.keys[layer][:, :, self.length : end] = key
        self.values[layer][:, :, self.length : end] = value
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]

    def room(self, layer: int) -> tuple[Tensor, Tensor]:
        """Views of the keys and values of all columns so far and one to come, which the caller writes."""
        self.interrupted = True
        end = self.length + 1
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]

    def extend(self, name: str, layer: int, columns: Float[Tensor, "batch kv_heads new size"]) -> Tensor:
        """Store something else about new columns; a view of all columns so far."""
        self.interrupted = True
        if (name, layer) not in self.extras:
            batch, heads, _, size = columns.shape
            self.extras[name, layer] = columns.new_zeros(batch, heads, self.capacity, size)
        store, end = self.extras[name, layer], self.length + columns.shape[2]
        store[:, :, self.length : end] = columns
        return store[:, :, :end]

    def rotate_keys(self, begin: int, rotation: Rotation, layer: int | None = None) -> None:
        """Rotate the stored keys of the columns from ``begin`` that the rotation covers, in place, in all layers or
        in one of them."""
        self.interrupted = True
        keys = self._all_keys if layer is None else self.keys[layer]
        window = keys[..., begin : begin + rotation.cos.shape[1], :]
        window.copy_(rotate(window.transpose(-3, -2), rotation, self.shape.pair_layout).transpose(-3, -2))

    def commit(
        self, columns: int, state: ModelState, rotated: Rotated | None = None, *, padded: bool, has_memory: bool = False
    ) -> None:
        """Accept the columns of a finished call, and by what keys were rotated."""
        if rotated is not None:
            self.columns.keep_angles(rotated)
        self.columns.commit(columns, state, padded=padded, has_memory=has_memory)
        self.interrupted = False

    def reorder(self, index: Int[Tensor, "rows"]) -> None:
        """Keep these rows, in this order: beams of a search. Rows may repeat."""
        self._refuse_if_interrupted()
        is_list = index.ndim == 1 and index.dtype in (torch.int64, torch.int32)
        if not is_list or (len(index) and not 0 <= int(index.min()) <= int(index.max()) < self.batch_size):
            raise InputError(f"rows {index.tolist()} are not a list of row numbers in 0..{self.batch_size - 1}")
        self.interrupted = True
        self._hold_keys(self._all_keys[:, index])
        self.values = [x[index] for x in self.values]
        self.extras = {name: x[index] for name, x in self.extras.items()}
        self.derived = {layer: x[index] for layer, x in self.derived.items()}
        self.columns.rows(index)
        self.interrupted = False

    def truncate(self, length: int) -> None:
        """Forget all columns from ``length`` on, as if they had never been read.

        A unit that was completed in the forgotten part is open again: its keys are rotated back to what they were,
        which costs one rounding in the cache's dtype.
        """
        self._refuse_if_interrupted()
        if not 0 <= length <= self.length:
            raise InputError(f"cannot truncate to {length} columns: the cache holds {self.length}")
        if length == self.length:
            return
        self.interrupted = True
        back = self.columns.truncate(length)
        if back is not None:
            self.rotate_keys(back.begin, back.rotations[0])
        tokens = self.fact("valid").sum(1)
        self.columns.state = replace(self.state, tokens=tokens, open_total=None)
        self.derived, self.interrupted = {}, False

    def check(self, shape: CacheShape, ids: Int[Tensor, "batch seq"]) -> None:
        """Refuse a cache of another model, another batch, or one left half-written."""
        self._refuse_if_interrupted()
        if shape != self.shape:
            fields = zip(CacheShape._fields, shape, self.shape, strict=True)
            named = [f"{name}: {here} here, {there} in the cache" for name, here, there in fields if here != there]
            raise CacheError(f"this cache belongs to another model ({'; '.join(named)}); use model.new_cache()")
        if ids.shape[0] != self.batch_size:
            raise CacheError(f"the cache has {self.batch_size} rows, ids {ids.shape[0]}; make a new cache or reorder()")
        if ids.device != self.columns.device:
            raise CacheError(f"the cache lies on {self.columns.device}, ids on {ids.device}")

    def _refuse_if_interrupted(self) -> None:
        if self.interrupted:
            raise CacheError("an earlier call with this cache did not finish; make a new one with model.new_cache()")
