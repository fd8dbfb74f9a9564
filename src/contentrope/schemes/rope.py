"""``rope``: ordinary rotary positions on one global counter."""

from __future__ import annotations

from torch import nn

from contentrope.config import ModelConfig
from contentrope.frames import Chunk, PlainFrame
from contentrope.rotary import PositionRotations
from contentrope.schemes.base import frequencies, read_options
from contentrope.schemes.positional import NoOptions, rotary_frame


class Rope(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        read_options("rope", NoOptions, config.options)
        self.rotations = PositionRotations(frequencies(config))

    def frame(self, chunk: Chunk) -> PlainFrame:
        return rotary_frame(chunk, self.rotations)
