"""The runs that have a name: ``contentrope reproduce facts --preset quick|paper|beyond``."""

from __future__ import annotations

from contentrope.experiments.facts.config import FactsConfig
from contentrope.training import TrainConfig

QUICK = FactsConfig(
    variants=("content:competition=1", "rope"),
    examples=200,
    initialisation="linear",
    training=TrainConfig(steps=1250, batch_size=32, learning_rate=4e-3, warmup=100),
)
"""A few minutes on two CPU cores."""

PAPER = FactsConfig(
    variants=(
        "content",
        "content:competition=1",
        "rope",
        "alibi:slopes=[0.00390625]",
        "alibi:slopes=[0.25]",
        "random",
        "local",
    ),
    seeds=3,
    training=TrainConfig(steps=100_000, batch_size=32, learning_rate=5e-4, precision="tf32"),
)
"""Appendix A.2 of the paper, with the exponent, and with controls the paper does not have."""

SHARP = "competition=1,sharpness=0.3,learn_sharpness=true"
"""Scores that grow with the number of completed units: among many facts one must still stand out."""

BEYOND = FactsConfig(
    variants=(
        f"content:{SHARP}",
        f"content:{SHARP},memory=true",
        f"random:{SHARP}",
        "rope",
        "alibi:slopes=[0.25]",
        "bipe",
    ),
    seeds=3,
    facts=(1, 8),
    ramp=0.4,
    answers_after=0.4,
    scaling=(4, 16, 64, 256),
    order=200,
    training=TrainConfig(steps=30_000, batch_size=32, learning_rate=3e-3, warmup=500, precision="tf32"),
)
"""Several facts in every training example, which the paper leaves as the next test. In the end only the names asked for
are learned: those of the facts cannot be known, and are most of the tokens. From the beginning that would be worse,
see docs/facts.md."""

PRESETS = {"quick": QUICK, "paper": PAPER, "beyond": BEYOND}
