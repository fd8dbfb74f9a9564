"""``pi``: position interpolation (Chen et al., 2023): rotary positions divided by ``factor``."""

from __future__ import annotations

from torch import nn

from contentrope.config import ModelConfig
from contentrope.frames import Chunk, PlainFrame
from contentrope.rotary import PositionRotations
from contentrope.schemes.base import frequencies, read_options
from contentrope.schemes.positional import ScaleOptions, rotary_frame


class PositionInterpolation(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        factor = read_options("pi", ScaleOptions, config.options).factor
        self.rotations = PositionRotations(frequencies(config) / factor)

    def frame(self, chunk: Chunk) -> PlainFrame:
        return rotary_frame(chunk, self.rotations)
