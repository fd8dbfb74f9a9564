"""Random integers for many rows at once, all from one generator on the CPU: every device sees the same examples."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def below(bound: Int[Tensor, "*shape"], generator: torch.Generator) -> Int[Tensor, "*shape"]:
    """For each bound an integer from 0 to the one before it, all equally likely.

    >>> below(torch.tensor([1, 1, 1]), torch.Generator()).tolist()
    [0, 0, 0]
    """
    drawn = (torch.rand(bound.shape, generator=generator, dtype=torch.float64) * bound).long()
    return torch.minimum(drawn, bound - 1)  # rounding could reach the bound


def without_repetition(
    pool: Int[Tensor, "rows 1"], count: int, generator: torch.Generator
) -> Int[Tensor, "rows {count}"]:
    """In each row, ``count`` different integers below its ``pool``, in random order.

    Where the pool is smaller, only the first ``pool`` columns mean anything.

    >>> sorted(without_repetition(torch.tensor([[5]]), 5, torch.Generator())[0].tolist())
    [0, 1, 2, 3, 4]
    """
    left = (pool - torch.arange(count)).clamp(min=1)
    rank = below(left, generator)
    # Each is a rank among what the earlier ones left over; putting those back, the last first, makes it a number.
    for earlier in reversed(range(count - 1)):
        later = rank[:, earlier + 1 :]
        later += (later >= rank[:, earlier : earlier + 1]).long()
    return rank


def shuffled(present: Bool[Tensor, "rows places"], generator: torch.Generator) -> Int[Tensor, "rows places"]:
    """In each row a random order of the places that are present; the others follow."""
    keys = torch.rand(present.shape, generator=generator, dtype=torch.float64)
    return keys.masked_fill(~present, 2.0).argsort(dim=1)
