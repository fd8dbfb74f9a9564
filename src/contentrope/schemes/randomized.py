"""``randomized``: randomized positions (Ruoss et al., 2023): an ordered random subset of a long range of positions.

The subset has as many positions as the sequence will have tokens, so a cache must know that number in advance:
``model.new_cache(..., max_tokens=N)``.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from contentrope.address import random_ranks
from contentrope.config import ModelConfig
from contentrope.context import Chunk, PlainContext
from contentrope.errors import CacheError, InputError
from contentrope.rotary import PositionRotations
from contentrope.schemes.base import Scheme, frequencies, rotary_context

WIDEST = 2**24
"""Every position of the range is drawn for every sequence."""


@dataclass(frozen=True, kw_only=True)
class Options:
    range: int = 16384
    """Positions are drawn from 0..range-1; no sequence can be longer."""

    def __post_init__(self) -> None:
        if self.range < 1:
            raise InputError(f"range must be positive, got {self.range}")
        if self.range > WIDEST:
            raise InputError(f"range must be at most {WIDEST}, got {self.range}")


class Randomized(Scheme):
    name = "randomized"
    Options = Options
    draws_at_random = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.range: int = self.options.range
        self.rotations = PositionRotations(frequencies(config))

    def context(self, chunk: Chunk) -> PlainContext:
        needed = chunk.columns
        declared = needed if chunk.cache is None else chunk.cache.max_tokens or self.range
        if needed > declared:
            raise CacheError(
                f"the cache was made for {declared} tokens, {needed} are needed: new_cache(max_tokens={needed})"
            )
        if declared > self.range:
            raise InputError(
                f"{declared} tokens need as many positions, the range has {self.range}; raise option 'range'"
            )
        drawn = self._positions(chunk.state.seed, declared)
        counted = chunk.positions().expand(len(chunk.ids), -1)
        return rotary_context(chunk, self.rotations, drawn.gather(1, counted), bound=self.range)

    def _positions(self, seed: Int[Tensor, "batch"], count: int) -> Int[Tensor, "batch count"]:
        """``count`` of the range's positions, all subsets equally likely, in order."""
        chosen = random_ranks(seed, self.range).topk(count, dim=1).indices
        return chosen.sort(dim=1).values
