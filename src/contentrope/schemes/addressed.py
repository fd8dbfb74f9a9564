"""What ``content``, ``random`` and ``local`` share: units, local rotations, competition between units, anchors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from contentrope.anchors import Anchors, UnitsBefore, unit_lengths
from contentrope.attention.pairs import unit_begins
from contentrope.config import ModelConfig
from contentrope.context import AddressedContext, Chunk
from contentrope.context.addressed import Carried, Reading
from contentrope.errors import InputError
from contentrope.rotary import PositionRotations, Rotation
from contentrope.schemes.base import frequencies, segmenter_of


@dataclass(frozen=True, kw_only=True)
class CompetitionOptions:
    competition: float = 0.0
    """Exponent alpha: ``alpha * log(completed units)`` is taken from the scores of keys in earlier units."""
    learn_competition: bool = False
    """Learn alpha per layer and head, starting from ``competition``."""
    sharpness: float = 0.0
    """Scores are multiplied by ``1 + sharpness * log(completed units)``, so that one among many stands out."""
    learn_sharpness: bool = False
    """Learn it per layer and head, starting from ``sharpness``."""

    def __post_init__(self) -> None:
        if self.sharpness < 0:
            raise InputError(
                f"sharpness must be at least 0, got {self.sharpness}: below, many units are read upside down"
            )


@dataclass(frozen=True, kw_only=True)
class AddressOptions(CompetitionOptions):
    anchors: tuple[int, ...] = ()
    """For each key/value head, how many units back the one lies that an open unit goes on from there; 0: none."""


class UnitReader(nn.Module):
    def __init__(self, config: ModelConfig, options: CompetitionOptions) -> None:
        super().__init__()
        self.competition = PerHead(config, options.competition, options.learn_competition)
        self.sharpness = PerHead(config, options.sharpness, options.learn_sharpness, of_several_models=True)
        self.segmenter = segmenter_of(config)
        self.rotations = PositionRotations(frequencies(config))
        back = options.anchors if isinstance(options, AddressOptions) else ()
        self.anchors = AnchoredHeads(config, back, self.rotations) if back else None

    def read(self, chunk: Chunk) -> Reading:
        earlier = None
        if chunk.share is None:
            units, before, after = chunk.read_units(self.segmenter)
        else:
            earlier, before = chunk.share.read_before(self.segmenter)
            units, before, after = chunk.advance(self.segmenter, before)
        return Reading(units, before, after, self.local_rotation(units.local, chunk), earlier)

    def local_rotation(self, local: Int[Tensor, "batch seq"], chunk: Chunk) -> Rotation:
        return self.rotations.at(local, chunk.wide, bound=self.segmenter.max_length)

    def context(
        self,
        chunk: Chunk,
        reading: Reading,
        angles: Float[Tensor, "batch slots kv_heads pairs"] | None,
        open_total: Float[Tensor, "batch dim"] | None = None,
    ) -> AddressedContext:
        return AddressedContext(
            chunk,
            reading,
            angles=angles,
            competition=self.competition.of,
            sharpness=self.sharpness.of,
            open_total=open_total,
            carried=self.anchors.carried(chunk, reading, angles) if self.anchors else None,
        )


class AnchoredHeads:
    """Anchored heads in our own models: what the cache keeps for them, and which units they cannot have."""

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
        found = [cache.find_unit(open_unit - d) for d in units]
        address, length, start = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
        return UnitsBefore(address.to(chunk.wide), length.to(chunk.wide), start)


class PerHead(nn.Module):
    """A number of a layer: one that is fixed, or learned per head."""

    def __init__(self, config: ModelConfig, start: float, learn: bool, of_several_models: bool = False) -> None:
        super().__init__()
        self.fixed, self.of_several_models = float(start), of_several_models
        size = (config.layers, config.heads)
        self.learned = nn.Parameter(torch.full(size, self.fixed)) if learn else None

    def of(self, layer: int) -> float | Float[Tensor, "*models heads"]:
        return self.fixed if self.learned is None else self.learned[..., layer, :]
