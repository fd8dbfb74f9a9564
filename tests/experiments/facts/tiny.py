"""A run of the facts experiment that takes a second."""

from __future__ import annotations

from typing import Any

from contentrope.training import TrainConfig
from contentrope.training.sizes import ModelSize
from experiments import runner
from experiments.facts.config import FactsConfig
from experiments.facts.run import Facts

TINY = FactsConfig(
    variants=("content:competition=1", "rope"),
    examples=6,
    scaling=(2, 5),
    order=4,
    model=ModelSize(dim=8, layers=1, heads=1),
    training=TrainConfig(steps=4, batch_size=3),
)


def run(config: FactsConfig, *where: Any, **how: Any) -> dict[str, Any]:
    """Train and evaluate every variant, :func:`experiments.runner.run` says where and how."""
    return runner.run(Facts(config), *where, **how)
