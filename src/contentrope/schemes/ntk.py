"""``ntk``: NTK-aware scaling: a larger rotary base, so that the slowest pair is slowed by ``factor``, the fastest not.

The factor is fixed. Choosing it from the current length ("dynamic NTK") would leave older cached keys rotated with
other frequencies than newer ones.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from contentrope.config import ModelConfig
from contentrope.context import Chunk, PlainContext
from contentrope.errors import InputError
from contentrope.rotary import PositionRotations
from contentrope.schemes.base import ScaleOptions, Scheme, frequencies, rotary_context


class NtkAware(Scheme):
    name = "ntk"
    Options = ScaleOptions

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        factor, rotary = self.options.factor, config.rotary
        in_series = config.pair_count * (config.key_heads if rotary.frequencies == "model_wide" else 1)
        if in_series < 2:
            raise InputError("ntk needs at least 2 rotary pairs: with one pair there is no slowest to stretch")
        stretch = factor ** (in_series / (in_series - 1))
        if rotary.base * stretch > sys.float_info.max:
            raise InputError(f"factor {factor} stretches the rotary base {rotary.base} past the largest number")
        stretched = replace(rotary, base=rotary.base * stretch)
        self.rotations = PositionRotations(frequencies(replace(config, rotary=stretched)))

    def context(self, chunk: Chunk) -> PlainContext:
        return rotary_context(chunk, self.rotations)
