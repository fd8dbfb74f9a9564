"""The KV cache: keys and values per layer, and facts per column of the tokens read so far.

A *column* is one step of the batch; rows may hold padding there. Keys of completed units are stored addressed, keys
of the open unit local; when a unit completes its keys are re-addressed once, in place, and values never change. With a
near window keys are re-addressed when their unit leaves it (:mod:`contentrope.window`). All that a unit is made of lies
in its columns (ids, marks, keys, values, address), so units can be cut out or moved.

Shapes: batch, columns (capacity: room, doubled when used up), kv_heads, head_dim, pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from contentrope.config import PairLayout
from contentrope.errors import CacheError, InputError
from contentrope.rotary import Rotation, rotate, rotation_of
from contentrope.units import SegmenterState, Units
from contentrope.window import WindowState, rolled_back

FIELDS = ("ids", "unit", "local", "start", "closes", "valid", "memory", "addressed", "begins")


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
class StreamState:
    """What the next token depends on, per row. Never written in place: a failed call changes nothing."""

    tokens: Int[Tensor, "batch"]
    """Tokens read, padding not counted."""
    seed: Int[Tensor, "batch"]
    segmenter: SegmenterState | None = None
    window: WindowState | None = None
    open_total: Float[Tensor, "batch dim"] | None = None
    """The open unit's running descriptor sum. None: to be brought up to date from the ids when the unit goes on in a
    chunk or completes, as after a rollback, and while single tokens come in that do not need it."""
    biases: dict[tuple[int | None, torch.dtype], Float[Tensor, "batch heads 1 columns"]] = field(default_factory=dict)
    """What was added to the scores of the last single token, by layer (None: the same in all) and dtype: the same for
    the next ones of its unit. Columns to come are among them."""

    def reorder(self, index: Int[Tensor, "rows"]) -> StreamState:
        return StreamState(
            tokens=self.tokens[index],
            seed=self.seed[index],
            segmenter=self.segmenter.reorder(index) if self.segmenter else None,
            window=self.window.reorder(index) if self.window else None,
            open_total=self.open_total[index] if self.open_total is not None else None,
        )


class Cache:
    """Made by :meth:`contentrope.Transformer.new_cache`; pass it to every call that continues the same rows."""

    def __init__(self, shape: CacheShape, state: StreamState, *, capacity: int, max_tokens: int | None = None) -> None:
        self.shape = shape
        self.state = state
        self.max_tokens = max_tokens
        self.length = 0
        self.padded = False
        self.has_memory = False
        # True while columns or layers are out of step with each other: what dies in between leaves it so.
        self.interrupted = False
        batch, device = len(state.tokens), state.tokens.device
        size = (shape.layers, batch, shape.kv_heads, capacity, shape.head_dim)
        self._hold_keys(torch.zeros(size, dtype=shape.dtype, device=device))
        self.values = [torch.zeros(size[1:], dtype=shape.dtype, device=device) for _ in range(shape.layers)]
        self.facts = torch.zeros(len(FIELDS), batch, capacity, dtype=torch.int64, device=device)
        self.facts[FIELDS.index("valid")] = 1
        self.angles: Tensor | None = None
        """Per column of a completed unit, by what its stored key was rotated: (batch, columns, kv_heads, pairs)."""
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
        return len(self.state.tokens)

    @property
    def capacity(self) -> int:
        return self.facts.shape[2]

    def fact(self, name: str, begin: int = 0, end: int | None = None) -> Int[Tensor, "batch columns"]:
        """One per-column fact of :data:`FIELDS`, of the columns read so far unless told otherwise."""
        return self.facts[FIELDS.index(name), :, begin : self.length if end is None else end]

    def reserve(self, columns: int) -> None:
        """Make room for this many columns in all; doubles, so that growth copies each column a few times at most."""
        if columns <= self.capacity:
            return
        room = max(columns, 2 * self.capacity) - self.capacity
        self._hold_keys(torch.nn.functional.pad(self._all_keys, (0, 0, 0, room)))
        self.values = [torch.nn.functional.pad(x, (0, 0, 0, room)) for x in self.values]
        self.extras = {name: torch.nn.functional.pad(x, (0, 0, 0, room)) for name, x in self.extras.items()}
        self.facts = torch.nn.functional.pad(self.facts, (0, room))
        self.facts[FIELDS.index("valid"), :, -room:] = 1
        if self.angles is not None:
            self.angles = torch.nn.functional.pad(self.angles, (0, 0, 0, 0, 0, room))

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

    def keep_angles(
        self,
        begin: int,
        where: Bool[Tensor, "batch columns"] | None,
        angles: Float[Tensor, "batch columns kv_heads pairs"],
    ) -> None:
        """Store, where a unit was completed, the :attr:`angles` of these columns; None: in all of them."""
        if self.angles is None:
            self.angles = angles.new_zeros(self.batch_size, self.capacity, *angles.shape[2:])
        end = begin + angles.shape[1]
        kept, addressed = self.angles[:, begin:end], self.fact("addressed", begin, end)
        kept.copy_(angles if where is None else torch.where(where[..., None, None], angles, kept))
        addressed.fill_(1) if where is None else addressed.masked_fill_(where, 1)

    def note(self, ids: Tensor, valid: Tensor | None, units: Units | None, begins: Tensor | None = None) -> None:
        """Write down the facts of new columns. Nobody counts on them before :meth:`commit`."""
        begin, end = self.length, self.length + ids.shape[1]
        if units is None:
            self.facts[0, :, begin:end] = ids
        else:
            parts = [ids.to(torch.int64), units.unit, units.local, units.start]
            if units.ends_any is not False:
                parts.append(units.closes.to(torch.int64))
            torch.stack(parts, out=self.facts[: len(parts), :, begin:end])
        # Decoding writes as little as it can: columns that are new close nothing, are valid, and no memory.
        if valid is not None or self.padded:
            self.fact("valid", begin, end).copy_(torch.ones_like(ids) if valid is None else valid)
        if units is not None and (units.has_memory or self.has_memory):
            self.fact("memory", begin, end).copy_(units.memory)
        if begins is not None:
            self.fact("begins", begin, end).copy_(begins)

    def commit(self, columns: int, state: StreamState, *, padded: bool, has_memory: bool = False) -> None:
        """Accept the columns of a finished call."""
        self.padded |= padded
        self.has_memory |= has_memory
        self.length, self.state, self.interrupted = self.length + columns, state, False

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
        self.facts = self.facts[:, index]
        self.angles = None if self.angles is None else self.angles[index]
        self.state, self.interrupted = self.state.reorder(index), False

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
        window = self._roll_back_window(length)
        if self.state.window is None:
            self._reopen(length)
        for name in ("closes", "addressed"):
            self.fact(name, length).zero_()
        self.derived = {}
        self.length = length
        tokens = self.fact("valid").sum(1)
        self.state = replace(self.state, tokens=tokens, segmenter=None, window=window, open_total=None, biases={})
        self.interrupted = False

    def _reopen(self, length: int) -> None:
        """Rotate back the keys left of ``length`` whose unit ends at or after it."""
        if self.angles is None or not length:
            return
        unit, closes = self.fact("unit", 0, length), self.fact("closes", 0, length)
        open_unit = unit[:, -1:] + closes[:, -1:]
        reopened = (unit == open_unit) & self.fact("addressed", 0, length).bool()
        if not bool(reopened.any()):
            return
        begin = int(reopened.any(0).nonzero()[0])
        self._rotate_back(begin, reopened[:, begin:])

    def _roll_back_window(self, length: int) -> WindowState | None:
        """The window as it was after so many columns; keys whose unit had left it since are near again."""
        before = self.state.window
        if before is None or not length:
            return None
        window, again = rolled_back(before, length, self.fact, has_memory=self.has_memory)
        if again is not None and again.mask is not None:
            self._rotate_back(again.begin, again.mask)
        return window

    def _rotate_back(self, begin: int, where: Bool[Tensor, "batch columns"]) -> None:
        assert self.angles is not None, "keys that were rotated have left their angles"
        end = begin + where.shape[1]
        self.rotate_keys(begin, rotation_of(-self.angles[:, begin:end]).only_where(where))
        self.fact("addressed", begin, end).masked_fill_(where, 0)

    def check(self, shape: CacheShape, ids: Int[Tensor, "batch seq"]) -> None:
        """Refuse a cache of another model, another batch, or one left half-written."""
        self._refuse_if_interrupted()
        if shape != self.shape:
            fields = zip(CacheShape._fields, shape, self.shape, strict=True)
            named = [f"{name}: {here} here, {there} in the cache" for name, here, there in fields if here != there]
            raise CacheError(f"this cache belongs to another model ({'; '.join(named)}); use model.new_cache()")
        if ids.shape[0] != self.batch_size:
            raise CacheError(f"the cache has {self.batch_size} rows, ids {ids.shape[0]}; make a new cache or reorder()")
        if ids.device != self.facts.device:
            raise CacheError(f"the cache lies on {self.facts.device}, ids on {ids.device}")

    def _refuse_if_interrupted(self) -> None:
        if self.interrupted:
            raise CacheError("an earlier call with this cache did not finish; make a new one with model.new_cache()")
