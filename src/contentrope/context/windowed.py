"""The context of addressed schemes with a near window: plain RoPE within it, addresses beyond it.

Queries come in two versions: at their position in the text, for near keys, and as if far keys lay just beyond the
window. A cached key is rotated to its far version when its unit leaves the window, so that single tokens need no key in
both versions.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from contentrope.attention import fused
from contentrope.attention.api import REGISTERED
from contentrope.attention.decode import attend_next, attend_one, reads_next_by_kernel
from contentrope.attention.pairs import States, no_competition, silence_padding
from contentrope.cache import Cache, Rotated
from contentrope.context.addressed import AddressedContext
from contentrope.context.chunk import Projected
from contentrope.rotary import PositionRotations, Rotation, rotation_of
from contentrope.window import Leaving, to_far


class WindowedContext(AddressedContext):
    """``angles`` are addresses: of slots where a whole text is read, of the columns that leave the window where a cache
    is; None: the identity."""

    def __init__(self, rotations: PositionRotations, *args: object, **options: object) -> None:
        self.rotations = rotations
        super().__init__(*args, **options)  # type: ignore[arg-type]

    def _set_rotations(self, angles: Float[Tensor, "batch slots kv_heads pairs"] | None) -> None:
        reading, chunk = self.reading, self.chunk
        assert reading.begins is not None
        local, columns = reading.units.local, reading.units.offset + reading.units.seq_length
        longest = reading.units.longest or columns
        position = reading.begins.clamp(min=0) + local
        self.query_rotation = self.key_rotation = self._at(position, columns)
        self.far_query_rotation = self._at(local, longest, origin=reading.width)
        if chunk.cache is None and chunk.backend == "fused" and angles is not None:
            self._fuse(angles)
        elif chunk.cache is None:
            address = None if angles is None else rotation_of(reading.by_token(angles))
            self.addressed_rotation = reading.local if address is None else reading.local.then(address)
        elif reading.leaving is not None:
            self.readdressed = self._leaving(chunk.cache, reading.leaving, angles)
            if self.single:
                self._rotate_cached_keys(chunk.cache, self.readdressed)

    def _fuse(self, by_slot: Float[Tensor, "batch slots kv_heads pairs"]) -> None:
        REGISTERED["fused"].require(self.chunk.embedded, self.chunk.config.head_dim)
        versions = {"near": self.query_rotation, "far_query": self.far_query_rotation}
        reading = self.reading
        self.fused_rotations = fused.rotations_of(
            reading.local, by_slot, reading.slot, reading.units.closes, **versions
        )

    def _at(self, positions: Tensor, bound: int, origin: int = 0) -> Rotation:
        return self.rotations.at(positions, self.chunk.wide, bound=bound, origin=origin)

    def _leaving(
        self, cache: Cache, leaving: Leaving, address: Float[Tensor, "batch columns kv_heads pairs"] | None
    ) -> Rotated:
        begin, end, where = leaving
        angles = to_far(address, cache.fact("begins", begin, end), self.rotations.inverse_frequency, self.chunk.wide)
        angles = angles.expand(-1, -1, self.chunk.config.key_heads, -1)
        return Rotated.by(begin, where, [angles])

    def _reach(self) -> int:
        units, reach = self.reading.units, super()._reach()
        return units.seq_length if units.has_memory else reach + self.reading.width

    def _read_with_cache(self, layer: int, projected: Projected) -> Float[Tensor, "batch heads seq head_dim"]:
        qkv, near, far, cache = projected.together, self.key_rotation, self.far_query_rotation, self.chunk.cache
        if not self.single or qkv is None or not reads_next_by_kernel(qkv, near, self.chunk.config.key_heads):
            return super()._read_with_cache(layer, projected)
        assert self.rule.near is not None
        assert far is not None
        assert cache is not None
        keys, begin = cache.room(layer), self.rule.near.begin
        out = attend_next(qkv, near, far, *keys, begin, **self._marks(layer), layout=self.layout)
        return silence_padding(out, self.rule)

    def _one_token(self, layer: int, states: States) -> Float[Tensor, "batch heads 1 head_dim"]:
        query, key, _, value, far_query = states
        assert self.rule.near is not None
        assert far_query is not None
        marks, begin = self._marks(layer), self.rule.near.begin
        out = attend_one(query, far_query, key, value, begin, **marks, begin_bounds=self._bounds())
        return silence_padding(out, self.rule)

    def _marks(self, layer: int) -> dict[str, Any]:
        """What a single token reads by, beside its window."""
        competition = self.competition(layer)
        taken = None if no_competition(competition) else self._taken(competition)
        return {"taken": taken, "key_memory": self._key_memory(), "hidden": self._hidden(), "scale": self.scale}

    def _taken(self, competition: float | Tensor) -> Float[Tensor, "batch heads 1"]:
        """What competition takes from far keys; a fixed exponent takes the same in all layers."""
        if isinstance(competition, Tensor):
            return self.rule.own_unit_bonus(competition, self.chunk.wide)
        taken = self.rule.memo.get("taken")
        if taken is None:
            taken = self.rule.memo["taken"] = self.rule.own_unit_bonus(competition, self.chunk.wide)
        return cast(Tensor, taken)

    def _bounds(self) -> tuple[int, int] | None:
        """On the host, between which columns near keys begin. A query of a memory unit has a window of its own."""
        moved = self.reading.moved
        if moved is None or self.rule.query_memory is not None or torch.compiler.is_compiling():
            return None
        return moved.after.least, moved.after.most

    def _key_memory(self) -> Bool[Tensor, "batch columns"] | None:
        """Keys read far wherever they stand. A query of a memory unit sees its own alone, which are near."""
        near, query_memory = self.rule.near, self.rule.query_memory
        if near is None or near.key_memory is None or query_memory is None:
            return None
        return near.key_memory & ~query_memory

    def _hidden(self) -> Bool[Tensor, "batch columns"] | None:
        """Columns that a single token does not see; padding sees itself, so that it is not softmax over nothing."""
        rule, hidden = self.rule, None
        if rule.query_memory is None and rule.key_valid is None:
            return None
        columns = torch.arange(rule.key_count, device=rule.start.device)
        if rule.query_memory is not None:
            hidden = rule.query_memory & (columns < rule.start)
        if rule.key_valid is not None:
            padding = ~rule.key_valid & (columns != rule.offset)
            hidden = padding if hidden is None else hidden | padding
        return hidden
