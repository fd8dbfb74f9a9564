"""A run of the facts experiment that takes a second."""

from __future__ import annotations

from contentrope.training import TrainConfig
from contentrope.training.sizes import ModelSize
from experiments.facts.config import FactsConfig

TINY = FactsConfig(
    variants=("content:competition=1", "rope"),
    examples=6,
    scaling=(2, 5),
    order=4,
    model=ModelSize(dim=8, layers=1, heads=1),
    training=TrainConfig(steps=4, batch_size=3),
)
