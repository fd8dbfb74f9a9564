"""The runs that have a name: ``contentrope reproduce shakespeare --preset quick|paper|beyond``."""

from __future__ import annotations

from contentrope.experiments.growth.config import GrowthConfig, ModelSize
from contentrope.training import TrainConfig

QUICK = GrowthConfig(
    variants=("content", "content:competition=1", "rope"),
    corpus="stdlib",
    characters=1_200_000,
    length=128,
    lengths=(128, 256, 512, 1024),
    model=ModelSize(layers=3),
    training=TrainConfig(steps=400, batch_size=16, learning_rate=1e-3, warmup=40),
)
"""A few minutes on two CPU cores, on a text every Python installation carries."""

PAPER = GrowthConfig(
    variants=(
        "content",
        "random",
        "alibi",
        "rope",
        "content:frequencies=model_wide",
        "random:frequencies=model_wide",
        "rope:frequencies=model_wide",
    ),
    seeds=3,
    training=TrainConfig(precision="bf16"),
)
"""Appendix A.1 of the paper to the letter, with both layouts of frequencies it leaves open."""

PRESETS = {"quick": QUICK, "paper": PAPER}
