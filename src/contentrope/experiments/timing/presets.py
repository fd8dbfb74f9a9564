"""The runs that have a name: ``contentrope reproduce timing --preset quick|paper``."""

from __future__ import annotations

from contentrope.experiments.timing.config import TimingConfig

QUICK = TimingConfig(
    variants=("0.8M at 256", "0.8M", "3M"),
    accelerations=("none",),
    rotary="eager",
    precision="float32",
    timed_steps=5,
    warmup_steps=1,
)
"""A minute or two on two CPU cores, without a compiler."""

PAPER = TimingConfig(
    variants=("0.8M", "85M", "302M", "680M", "85M at 8,192", "85M at 32,768", "0.8M at 8,192", "0.8M at 32,768"),
    schemes=("content",),
    accelerations=("none", "graphs"),
)
"""The paper's four sizes, then longer sequences; for a GPU. Steps that wait for Python, and steps that never do."""

PRESETS = {"quick": QUICK, "paper": PAPER}
