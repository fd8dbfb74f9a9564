"""``pi``: position interpolation (Chen et al., 2023): rotary positions divided by ``factor``."""

from __future__ import annotations

from contentrope.config import ModelConfig
from contentrope.context import Chunk, PlainContext
from contentrope.rotary import PositionRotations
from contentrope.schemes.base import ScaleOptions, Scheme, frequencies, rotary_context


class PositionInterpolation(Scheme):
    name = "pi"
    Options = ScaleOptions

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.rotations = PositionRotations(frequencies(config) / self.options.factor)

    def context(self, chunk: Chunk) -> PlainContext:
        return rotary_context(chunk, self.rotations)
