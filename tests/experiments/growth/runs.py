"""Tiny runs of the context-growth experiment, and what they tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contentrope.results import read_json, write_json
from contentrope.training import StepReport, TrainConfig
from contentrope.training.sizes import ModelSize
from experiments import runner
from experiments.growth.config import GrowthConfig
from experiments.growth.run import Growth

TINY = GrowthConfig(
    variants=("content", "rope"),
    corpus="stdlib",
    characters=4_000,
    length=16,
    lengths=(16, 32),
    model=ModelSize(dim=8, layers=1, heads=2),
    training=TrainConfig(steps=4, batch_size=2),
)


def run(config: GrowthConfig, *where: Any, **how: Any) -> dict[str, Any]:
    """Train and evaluate every variant, :func:`experiments.runner.run` says where and how."""
    return runner.run(Growth(config), *where, **how)


@dataclass
class Recorder:
    interrupt: tuple[str, int] | None = None
    events: list[tuple[Any, ...]] = field(default_factory=list)

    def planned(self, runs: int, kept: int, steps: int) -> None:
        self.events.append(("planned", runs, kept, steps))

    def kept(self, name: str) -> None:
        self.events.append(("kept", name))

    def trained(self, name: str, report: StepReport) -> None:
        self.events.append(("trained", name, report.step))
        if self.interrupt == (name, report.step):
            raise KeyboardInterrupt

    def evaluated(self, name: str, said: str) -> None:
        self.events.append(("evaluated", name, said))

    def finished(self, name: str, said: str) -> None:
        self.events.append(("finished", name))

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        return [event[1:] for event in self.events if event[0] == kind]


def perplexities(results: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        variant: {seed: run["perplexity"] for seed, run in entry["runs"].items()}
        for variant, entry in results["variants"].items()
    }


def as_json(results: dict[str, Any], folder: Path) -> Any:
    """Results as JSON sees them: tuples become lists."""
    write_json(folder / "copy.json", results)
    return read_json(folder / "copy.json")
