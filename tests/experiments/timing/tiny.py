"""A run of the timing experiment that takes a second, and a clock that nothing disturbs."""

from __future__ import annotations

from typing import Any

from experiments import runner
from experiments.timing.config import TimingConfig
from experiments.timing.run import Timing

TINY = TimingConfig(
    variants=("0.8M at 16", "0.8M at 8"),
    schemes=("content", "content:competition=1"),
    accelerations=("none",),
    rotary="eager",
    precision="float32",
    timed_steps=3,
    warmup_steps=2,
    unit_length=5,
)


def run(config: TimingConfig, *where: Any, **how: Any) -> dict[str, Any]:
    """Time every row, :func:`experiments.runner.run` says where and how."""
    return runner.run(Timing(config), *where, **how)


class Clock:
    """Stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def move(self, milliseconds: float) -> None:
        self.now += milliseconds / 1e3
