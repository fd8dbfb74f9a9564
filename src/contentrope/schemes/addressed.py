"""What ``content``, ``random`` and ``local`` share: units, local rotations, competition between units."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from contentrope.attention.api import check_window
from contentrope.attention.pairs import unit_positions
from contentrope.config import ModelConfig
from contentrope.context import AddressedContext, Chunk, WindowedContext
from contentrope.context.addressed import Reading
from contentrope.errors import InputError
from contentrope.rotary import PositionRotations, Rotation
from contentrope.schemes.base import frequencies, segmenter_of
from contentrope.window import begins_of, initial_window, move


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
    window: int = 0
    """Units that began at most so many tokens before the query's are read by plain RoPE; 0: the own unit alone."""

    def __post_init__(self) -> None:
        check_window(self.window)
        if self.sharpness < 0:
            raise InputError(
                f"sharpness must be at least 0, got {self.sharpness}: below, many units are read upside down"
            )


class UnitReader(nn.Module):
    def __init__(self, config: ModelConfig, options: CompetitionOptions) -> None:
        super().__init__()
        self.competition = PerHead(config, options.competition, options.learn_competition)
        self.sharpness = PerHead(config, options.sharpness, options.learn_sharpness, of_several_models=True)
        self.window = options.window
        self.segmenter = segmenter_of(config)
        self.rotations = PositionRotations(frequencies(config))

    def read(self, chunk: Chunk) -> Reading:
        earlier = None
        if chunk.share is None:
            units, before, after = chunk.read_units(self.segmenter)
        else:
            earlier, before = chunk.share.read_before(self.segmenter)
            units, before, after = chunk.advance(self.segmenter, before)
        origin = self.window if chunk.cache is not None else 0
        reading = Reading(units, before, after, self.local_rotation(units.local, chunk, origin), earlier)
        if self.window:
            return self._with_window(chunk, reading)
        chunk.note(units)
        return reading

    def _with_window(self, chunk: Chunk, reading: Reading) -> Reading:
        units, earlier, cache = reading.units, reading.earlier, chunk.cache
        state = chunk.state.window or initial_window(self.window, len(chunk.ids), chunk.ids.device)
        of_earlier = None if earlier is None else unit_positions(earlier)
        if of_earlier is not None:
            state = state._replace(positions=(of_earlier >= 0).sum(1, keepdim=True))
        begins = begins_of(units, state.positions)
        chunk.note(units, begins)
        moved = None
        if cache is not None:
            moved = move(state, units, begins, cache.fact, has_memory=units.has_memory or cache.columns.has_memory)
        elif earlier is not None and of_earlier is not None:
            table = {
                "begins": torch.cat((of_earlier, begins), dim=1),
                "unit": torch.cat((earlier.unit, units.unit), dim=1),
                "memory": torch.cat((earlier.memory, units.memory), dim=1),
            }
            moved = move(
                state, units, begins, lambda name, first, end: table[name][:, first:end], has_memory=units.has_memory
            )
            moved = moved._replace(leaving=None)  # there is no cache whose keys would be rotated
        return reading._replace(width=self.window, begins=begins, moved=moved)

    def local_rotation(self, local: Int[Tensor, "batch seq"], chunk: Chunk, origin: int = 0) -> Rotation:
        return self.rotations.at(local, chunk.wide, bound=self.segmenter.max_length, origin=origin)

    def context(
        self,
        chunk: Chunk,
        reading: Reading,
        angles: Float[Tensor, "batch slots kv_heads pairs"] | None,
        open_total: Float[Tensor, "batch dim"] | None = None,
    ) -> AddressedContext:
        kind = partial(WindowedContext, self.rotations) if self.window else AddressedContext
        return kind(
            chunk,
            reading,
            angles=angles,
            competition=self.competition.of,
            sharpness=self.sharpness.of,
            open_total=open_total,
        )


class PerHead(nn.Module):
    """A number of a layer: one that is fixed, or learned per head."""

    def __init__(self, config: ModelConfig, start: float, learn: bool, of_several_models: bool = False) -> None:
        super().__init__()
        self.fixed, self.of_several_models = float(start), of_several_models
        size = (config.layers, config.heads)
        self.learned = nn.Parameter(torch.full(size, self.fixed)) if learn else None

    def of(self, layer: int) -> float | Float[Tensor, "*models heads"]:
        return self.fixed if self.learned is None else self.learned[..., layer, :]
