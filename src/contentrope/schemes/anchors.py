"""Anchored heads in our own models: what the cache remembers for them, and which units they cannot have."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from contentrope.anchors import Anchors, UnitsBefore, unit_lengths
from contentrope.attention.pairs import unit_begins
from contentrope.config import ModelConfig
from contentrope.errors import InputError
from contentrope.frames import Chunk
from contentrope.frames.addressed import Carried, Reading
from contentrope.rotary import PositionRotations


class AnchoredHeads:
    def __init__(self, config: ModelConfig, back: tuple[int, ...], rotations: PositionRotations) -> None:
        self.anchors = Anchors(back, config.key_heads)
        if config.reader:
            raise InputError(f"anchors give units an order, memory units have none; leave out reader={config.reader}")
        self.rotations = rotations

    def carried(
        self, chunk: Chunk, reading: Reading, angles: Float[Tensor, "batch slots kv_heads pairs"] | None
    ) -> Carried:
        """What the unit of every slot carries while it is open. ``angles`` are the addresses of the slots."""
        if reading.units.has_memory:
            raise InputError("anchors give units an order, memory units have none; leave out memory=")
        before, units, recent = reading.before, reading.units, self._recent(chunk, reading)
        if angles is None:
            return Carried(self._of(recent, reading), recent)
        slots = angles.shape[1]
        length = unit_lengths(reading.slot, units.valid, before.next_local, slots, recent.length.dtype)
        start = unit_begins(units, reading.slot, slots)
        newest = recent.then(angles, length, start)
        by_slot = self._of(recent.then(angles[:, :-1], length[:, :-1], start[:, :-1]), reading)
        return Carried(by_slot, newest.after(reading.after.next_unit - before.next_unit, self.anchors.reach))

    def _of(self, units: UnitsBefore, reading: Reading) -> Float[Tensor, "batch slots kv_heads pairs"]:
        return self.anchors.carried(units, reading.before.next_unit, self.rotations.inverse_frequency)

    def _recent(self, chunk: Chunk, reading: Reading) -> UnitsBefore:
        if chunk.state.recent is not None:
            return chunk.state.recent
        cache, open_unit, units = chunk.cache, reading.before.next_unit, range(self.anchors.reach, 0, -1)
        if cache is None:
            rows = chunk.embedded.new_zeros(len(chunk.ids), self.anchors.reach, dtype=chunk.wide)
            shape = (chunk.config.key_heads, chunk.config.pair_count)
            return UnitsBefore(rows[..., None, None].expand(-1, -1, *shape), rows, rows.long())
        address = torch.stack([cache.address_of(open_unit - d) for d in units], dim=1).to(chunk.wide)
        found = [cache.extent_of(open_unit - d) for d in units]
        length, start = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
        return UnitsBefore(address, length.to(chunk.wide), start)
