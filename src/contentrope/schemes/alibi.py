"""``alibi``: no rotation; scores fall linearly with distance (Press et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from contentrope.config import ModelConfig
from contentrope.context import Chunk, PlainContext
from contentrope.errors import InputError
from contentrope.schemes.base import Scheme


@dataclass(frozen=True, kw_only=True)
class Options:
    slopes: tuple[float, ...] = ()
    """One per head; empty: the geometric ladder of the paper."""


class Alibi(Scheme):
    name = "alibi"
    Options = Options
    slope_bits: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        slopes = self.options.slopes
        if slopes and len(slopes) != config.heads:
            raise InputError(f"slopes {slopes} are {len(slopes)}, heads {config.heads}: give one slope per head")
        exact = torch.tensor(slopes, dtype=torch.float64) if slopes else ladder(config.heads)
        # As bits, like the rotary frequencies: on the model's device, but never rounded to its dtype.
        self.register_buffer("slope_bits", exact.view(torch.int64), persistent=False)

    def context(self, chunk: Chunk) -> PlainContext:
        return PlainContext(chunk, slopes=self.slope_bits.view(torch.float64))


def ladder(heads: int) -> Float[Tensor, "heads"]:
    """A geometric ladder from 2^(-8/heads) down to 2^-8.

    >>> ladder(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    return 2.0 ** (-8.0 * torch.arange(1, heads + 1, dtype=torch.float64) / heads)
