"""The runs that have a name: ``contentrope reproduce retrofit --preset quick|paper``."""

from __future__ import annotations

from contentrope.experiments.retrofit.config import LlamaSize, RetrofitConfig
from contentrope.training import TrainConfig

QUICK = RetrofitConfig(
    text=("stdlib",),
    characters=1_000_000,
    length=128,
    size=LlamaSize(dim=128, layers=3, heads=4, dropout=0.0),
    pretraining=TrainConfig(steps=1000, batch_size=16, learning_rate=2e-3, warmup=100),
    training=TrainConfig(steps=100, batch_size=16, learning_rate=3e-4, warmup=10),
)
"""A few minutes on two CPU cores, on a text every Python installation carries."""

PAPER = RetrofitConfig(
    seeds=3,
    size=LlamaSize(dropout=0.2),
    pretraining=TrainConfig(steps=1500, batch_size=64, learning_rate=1e-3, warmup=100, precision="bf16"),
    training=TrainConfig(steps=150, batch_size=64, learning_rate=3e-4, warmup=15, precision="bf16"),
)
"""A model of three million parameters on Tiny Shakespeare, converted with a tenth of its steps; for a GPU."""

PRESETS = {"quick": QUICK, "paper": PAPER}
