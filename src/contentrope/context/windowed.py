"""The context of addressed schemes with a near window: plain RoPE within it, addresses beyond it.

Queries come in two versions: at their position in the text, for near keys, and as if far keys lay just beyond the
window. A cached key is rotated to its far version when its unit leaves the window, so that single tokens need no key in
both versions.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from contentrope.attention import fused
from contentrope.attention.api import REGISTERED
from contentrope.attention.decode import attend_next, attend_one, reads_next_by_kernel
from contentrope.attention.pairs import no_competition, silence_padding
from contentrope.cache import Cache, Rotated
from contentrope.context.addressed import AddressedContext
from contentrope.context.chunk import Projected
from contentrope.rotary import PositionRotations, Rotation, rotate, rotation_of
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
        is_text = not (reading.units.padded or reading.units.has_memory)
        position = local + (reading.begins if is_text else reading.begins.clamp(min=0))
        self.query_rotation = self.key_rotation = self._at(position, columns)
        self.far_query_rotation = reading.local if chunk.cache else self._at(local, longest, origin=reading.width)
        if chunk.cache is None and chunk.backend == "fused" and angles is not None:
            self._fuse(angles)
        elif chunk.cache is None:
            address = None if angles is None else rotation_of(reading.by_token(angles))
            self.addressed_rotation = reading.local if address is None else reading.local.then(address)
        elif reading.leaving is not None:
            self.readdressed = self._leaving(chunk.cache, reading.leaving, angles)
            if self.single:
                self._rotate_cached_keys(chunk.cache, self.readdressed)
        if self.single:
            self.both_rotations = self._side_by_side(self.query_rotation, self.far_query_rotation)

    def _side_by_side(self, near: Rotation, far: Rotation) -> Rotation:
        """For a single token's queries and key, near and far in place of two tokens: one product in every layer."""
        group, rows = self.chunk.config.heads // self.chunk.config.key_heads, near.cos.shape[2]

        def stacked(near: Tensor, far: Tensor) -> Tensor:
            both = torch.cat((near, far), dim=1)
            return both if rows == 1 else torch.cat((both.repeat_interleave(group, dim=2), both), dim=2)

        return Rotation(stacked(near.cos, far.cos), stacked(near.sin, far.sin))

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
        if not self.single:
            return super()._read_with_cache(layer, projected)
        query, key, value, qkv = projected
        near, far, cache = self.query_rotation, self.far_query_rotation, self.chunk.cache
        assert self.rule.near is not None
        assert far is not None
        assert cache is not None
        begin, marks = self.rule.near.begin, self._marks(layer)
        if qkv is not None and reads_next_by_kernel(qkv, near, key.shape[2]):
            out = attend_next(qkv, near, far, *cache.room(layer), begin, **marks, layout=self.layout)
            return silence_padding(out, self.rule)
        heads, kv_heads = query.shape[2], key.shape[2]
        qk = torch.cat((query, key), dim=2) if qkv is None else qkv.narrow(2, 0, heads + kv_heads)
        both = rotate(qk.expand(-1, 2, -1, -1), self.both_rotations, self.layout).transpose(1, 2)
        of_near, of_far = both.split(1, dim=2)
        near_query, new_key = of_near.split((heads, kv_heads), dim=1)
        far_query = of_far.narrow(1, 0, heads)
        keys, values = cache.append(layer, new_key, value.transpose(1, 2))
        out = attend_one(
            near_query, far_query, keys, values, begin, **marks, begin_bounds=self._bounds(), memo=self.rule.memo
        )
        return silence_padding(out, self.rule)

    def _marks(self, layer: int) -> dict[str, Any]:
        """What a single token reads by, beside its window."""
        competition = self.competition(layer)
        taken = None if no_competition(competition) else self._taken(layer, competition)
        marks = self.rule.memo.get("marks")
        if marks is None:
            marks = {"key_memory": self._key_memory(), "hidden": self._hidden(), "scale": self.scale}
            self.rule.memo["marks"] = marks
        return {**marks, "taken": taken}

    def _taken(self, layer: int, competition: float | Tensor) -> Float[Tensor, "batch heads 1"]:
        """What competition takes from far keys, cached until the unit closes; a fixed exponent takes the same in all
        layers."""
        name = layer if isinstance(competition, Tensor) else None, self.chunk.wide
        taken = self.biases.get(name)
        if taken is None:
            taken = self.biases[name] = self.rule.own_unit_bonus(competition, self.chunk.wide)
        return taken

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
