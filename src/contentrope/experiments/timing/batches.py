"""What the timed steps see: tokens at random, the same for every contender, on the device before the clock starts."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from contentrope.experiments.timing.config import TERMINATOR, TimingConfig
from contentrope.experiments.timing.rows import Row
from contentrope.training import Batch
from contentrope.training.batches import mixed_seed


def random_batches(config: TimingConfig, row: Row, seed: int, device: str) -> list[Batch]:
    """A batch for every step, warm-up included."""
    steps = config.warmup_steps + config.timed_steps
    return [_batch(config, row, mixed_seed(seed, step, 4), device) for step in range(steps)]


def _batch(config: TimingConfig, row: Row, seed: int, device: str) -> Batch:
    tokens = random_tokens(row.batch, row.length + 1, config, torch.Generator().manual_seed(seed)).to(device)
    return Batch({"ids": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous())


def random_tokens(
    rows: int, length: int, config: TimingConfig, generator: torch.Generator
) -> Int[Tensor, "rows length"]:
    """Any token ends its unit with the same probability, so that units have the length asked for in the mean."""
    tokens = torch.randint(TERMINATOR + 1, config.vocabulary, (rows, length), generator=generator)
    ends = torch.rand(rows, length, generator=generator) < 1 / config.unit_length
    return tokens.masked_fill(ends, TERMINATOR)
