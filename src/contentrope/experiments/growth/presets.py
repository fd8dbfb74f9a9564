"""The runs that have a name: ``contentrope reproduce shakespeare --preset quick|paper|beyond``."""

from __future__ import annotations

from contentrope.experiments.growth.config import GrowthConfig
from contentrope.experiments.sizes import ModelSize
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

LEARNED = "competition=1,learn_competition=true"
ANCHORED = "anchors=[0,0,1,1]"
BEYOND = GrowthConfig(
    variants=(
        f"content:{LEARNED},noise=0.5,{ANCHORED}",
        f"content:{LEARNED},{ANCHORED}",
        f"content:{LEARNED},noise=0.5",
        "cope",
        "path",
        f"random:{LEARNED},{ANCHORED}",
        f"random:{LEARNED}",
        "random",
        "local",
        "rope",
        "alibi",
        "nope",
        "pi:factor=64",
        "ntk:factor=64",
        "yarn:factor=64",
        "randomized:range=65536",
        "bipe",
    ),
    seeds=3,
    lengths=(256, 512, 1024, 2048, 4096, 8192, 16384),
    once=(65536,),
    distant=4096,
    model=ModelSize(dropout=0.1, attention_dropout=0.2),
    training=TrainConfig(steps=2500, learning_rate=3e-3, warmup=100, precision="bf16"),
)
"""The same text and size with our extensions, against every baseline under the same regularisation."""

PRESETS = {"quick": QUICK, "paper": PAPER, "beyond": BEYOND}
