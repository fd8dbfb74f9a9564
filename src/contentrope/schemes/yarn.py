"""``yarn``: YaRN (Peng et al., 2023): slow pairs interpolated, fast ones left alone, a ramp between, sharper scores.

A pair counts as slow when it makes fewer than ``slow_turns`` turns within the training length, as fast above
``fast_turns``. Scores are multiplied by (0.1 ln(factor) + 1)^2, here through the length of cosine and sine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from contentrope.config import ModelConfig
from contentrope.context import Chunk, PlainContext
from contentrope.errors import InputError
from contentrope.rotary import PositionRotations
from contentrope.schemes.base import Scheme, frequencies, rotary_context


@dataclass(frozen=True, kw_only=True)
class Options:
    factor: float = 16.0
    train_length: int = 256
    slow_turns: float = 1.0
    fast_turns: float = 32.0

    def __post_init__(self) -> None:
        if not (self.factor >= 1.0 and self.train_length >= 1 and 0 < self.slow_turns < self.fast_turns):
            raise InputError(f"yarn needs factor >= 1, train_length >= 1 and 0 < slow_turns < fast_turns, got {self}")


class Yarn(Scheme):
    name = "yarn"
    Options = Options

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        options, plain = self.options, frequencies(config)
        turns = options.train_length * plain / (2 * math.pi)
        kept = ((turns - options.slow_turns) / (options.fast_turns - options.slow_turns)).clamp(0.0, 1.0)
        mixed = plain * kept + plain / options.factor * (1 - kept)
        self.rotations = PositionRotations(mixed, amplitude=0.1 * math.log(options.factor) + 1.0)

    def context(self, chunk: Chunk) -> PlainContext:
        return rotary_context(chunk, self.rotations)
