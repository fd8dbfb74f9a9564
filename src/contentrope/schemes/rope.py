"""``rope``: ordinary rotary positions on one global counter."""

from __future__ import annotations

from contentrope.config import ModelConfig
from contentrope.context import Chunk, PlainContext
from contentrope.rotary import PositionRotations
from contentrope.schemes.base import Scheme, frequencies, rotary_context


class Rope(Scheme):
    name = "rope"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.rotations = PositionRotations(frequencies(config))

    def context(self, chunk: Chunk) -> PlainContext:
        return rotary_context(chunk, self.rotations)
