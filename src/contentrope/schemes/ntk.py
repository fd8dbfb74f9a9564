"""``ntk``: NTK-aware scaling: a larger rotary base, so that the slowest pair is slowed by ``factor``, the fastest not.

The factor is fixed. Choosing it from the current length ("dynamic NTK") would leave older cached keys turned with
other frequencies than newer ones.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from torch import nn

from contentrope.config import ModelConfig
from contentrope.errors import InputError
from contentrope.frames import Chunk, PlainFrame
from contentrope.rotary import PositionRotations
from contentrope.schemes.base import frequencies, read_options
from contentrope.schemes.positional import ScaleOptions, rotary_frame


class NtkAware(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        factor = read_options("ntk", ScaleOptions, config.options).factor
        frequencies_in_series = config.pair_count * (
            config.key_heads if config.rotary.frequencies == "model_wide" else 1
        )
        if frequencies_in_series < 2:
            raise InputError("ntk needs at least 2 rotary pairs: with one pair there is no slowest to stretch")
        stretch = factor ** (frequencies_in_series / (frequencies_in_series - 1))
        if config.rotary.base * stretch > sys.float_info.max:
            raise InputError(f"factor {factor} stretches the rotary base {config.rotary.base} beyond all numbers")
        stretched = replace(config.rotary, base=config.rotary.base * stretch)
        self.rotations = PositionRotations(frequencies(replace(config, rotary=stretched)))

    def frame(self, chunk: Chunk) -> PlainFrame:
        return rotary_frame(chunk, self.rotations)
