"""What ``content``, ``random`` and ``local`` share: units, local rotations and the competition between units."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from contentrope.config import ModelConfig
from contentrope.errors import InputError
from contentrope.frames import AddressedFrame, Chunk
from contentrope.frames.addressed import Reading
from contentrope.rotary import PositionRotations, Rotation
from contentrope.schemes.anchors import AnchoredHeads
from contentrope.schemes.base import advance, frequencies, read_units, segmenter_of


@dataclass(frozen=True, kw_only=True)
class Options:
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
class AddressOptions(Options):
    anchors: tuple[int, ...] = ()
    """For each key/value head, how many units back the one lies that an open unit goes on from there; 0: none."""


class UnitReader(nn.Module):
    def __init__(self, config: ModelConfig, options: Options) -> None:
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
            units, before, after = read_units(self.segmenter, chunk)
        else:
            earlier, before = chunk.share.read_before(self.segmenter)
            units, after = advance(self.segmenter, before, chunk)
        return Reading(units, before, after, self.local_rotation(units.local, chunk), earlier)

    def local_rotation(self, local: Int[Tensor, "batch seq"], chunk: Chunk) -> Rotation:
        return self.rotations.at(local, chunk.wide, bound=self.segmenter.max_length)

    def frame(
        self,
        chunk: Chunk,
        reading: Reading,
        angles: Float[Tensor, "batch slots kv_heads pairs"] | None,
        open_total: Float[Tensor, "batch dim"] | None = None,
    ) -> AddressedFrame:
        return AddressedFrame(
            chunk,
            reading,
            angles=angles,
            competition=self.competition.of,
            sharpness=self.sharpness.of,
            open_total=open_total,
            carried=self.anchors.carried(chunk, reading, angles) if self.anchors else None,
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


@contextmanager
def competing_with(scheme: nn.Module, exponent: float) -> Iterator[None]:
    """The exponent of a scheme with addresses, fixed or learned, is another one for a while."""
    (part,) = (part for name, part in scheme.named_modules() if name.rpartition(".")[2] == "competition")
    assert isinstance(part, PerHead)
    own = part.fixed, part.learned
    part.fixed, part.learned = float(exponent), None
    try:
        yield
    finally:
        part.fixed, part.learned = own


def learned_by_head(scheme: nn.Module) -> dict[str, list[list[float]]]:
    """What training made of the exponent and the sharpness, by layer and head; those that are fixed are left out."""
    parts = ((name.rpartition(".")[2], part) for name, part in scheme.named_modules() if isinstance(part, PerHead))
    return {name: part.learned.tolist() for name, part in parts if part.learned is not None}
