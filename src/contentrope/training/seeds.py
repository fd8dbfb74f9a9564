"""Random numbers that depend on a seed alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from contentrope.config import ModelConfig
from contentrope.model import Transformer


def fresh_model(
    config: ModelConfig, seed: int, device: str, initialise: Callable[[Transformer], None] = lambda model: None
) -> Transformer:
    """A model with the initialisation of ``seed``, which is the same on every device."""
    with seeded(seed):
        model = Transformer(config)
        initialise(model)
    return model.to(device)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers that depend on ``seed`` alone, for the time of the block."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield
