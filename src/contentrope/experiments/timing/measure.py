"""One row: every contender trained for some steps, in turn, eager and compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from contentrope import schemes
from contentrope.errors import InputError
from contentrope.experiments import suite
from contentrope.experiments.suite import Configured, Evaluated, Finished, Progress, Tell, seeded
from contentrope.experiments.timing.baseline import with_compiled_rotary
from contentrope.experiments.timing.batches import random_batches
from contentrope.experiments.timing.config import BASELINE, TimingConfig
from contentrope.experiments.timing.gauge import Gauge
from contentrope.experiments.timing.race import REFUSALS, Race
from contentrope.experiments.timing.rows import Row, parse_row
from contentrope.model import Transformer
from contentrope.results import environment
from contentrope.training import Stepper

Timings = dict[str, dict[str, Any]]
WORDS = {"none": "eager", "compile": "compiled", "graphs": "as one graph"}


def run(
    config: TimingConfig,
    out: Path,
    progress: Progress,
    device: str = "cpu",
    *,
    preset: str = "custom",
    jobs: int = 1,
    asked: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Time every row; see :func:`contentrope.experiments.suite.run`."""
    require_one_job(jobs)
    return suite.run(Timing(config), out, progress, device, preset=preset, jobs=jobs, asked=asked)


def require_one_job(jobs: int) -> None:
    if jobs > 1:
        raise InputError(f"rows timed beside each other would disturb each other, got {jobs} jobs; leave out --jobs")


@dataclass(frozen=True)
class Timing(Configured):
    """The experiment: :class:`contentrope.experiments.suite.Experiment`."""

    config: TimingConfig

    name = "timing"

    @property
    def steps(self) -> int:
        return len(self.config.accelerations) * (self.config.warmup_steps + self.config.timed_steps)

    def data(self) -> dict[str, Any]:
        return {"name": "random tokens", "symbols": self.config.vocabulary, "unit_length": self.config.unit_length}

    def check(self) -> None:
        for variant in self.variants:
            for scheme in self.config.contenders:
                schemes.make(self.config.model_of(scheme, parse_row(variant)))

    def measure(self, variant: str, seeds: list[int], out: Path, device: str, tell: Tell) -> None:
        row, gauge = parse_row(variant), Gauge(device)
        for seed in seeds:
            found: dict[str, Timings] = {}
            for acceleration in self.config.accelerations:
                with seeded(seed):  # every step sets the state of all random numbers
                    found[acceleration] = self._timings(row, acceleration, seed, gauge, tell)
                gauge.forget_compiled()
                tell(Evaluated(variant, seed, in_short(acceleration, found[acceleration])))
            said = "; ".join(in_short(*item) for item in found.items())
            tell(Finished(variant, seed, _facts(row, device) | {"timings": found}, said))

    def _timings(self, row: Row, acceleration: str, seed: int, gauge: Gauge, tell: Tell) -> Timings:
        """One acceleration: by contender, its times and what it takes more than the baseline."""
        config, device = self.config, str(gauge.device)
        makers = {
            scheme: partial(self._stepper, scheme, row, acceleration, seed, device) for scheme in config.contenders
        }
        # What a compiler cannot do on some machine is a gap in the table, not the end of it.
        race = Race(gauge, REFUSALS if acceleration == "none" else (*REFUSALS, RuntimeError))
        timings = race.run(
            makers,
            random_batches(config, row, seed, device),
            config.warmup_steps,
            ready=lambda name: tell(Evaluated(row.name, seed, f"{name} runs {WORDS[acceleration]}")),
        )
        return with_overheads(timings)

    def _stepper(self, scheme: str, row: Row, acceleration: str, seed: int, device: str) -> Stepper:
        config = self.config
        with seeded(seed), torch.device(device):  # made there: the largest would take long to draw on a CPU
            model = Transformer(config.model_of(scheme, row), backend=config.backend_of(scheme))
        if scheme == BASELINE and acceleration == "none" and config.rotary == "compiled":
            model = with_compiled_rotary(model)
        return Stepper(model, config.training_of(row, acceleration, seed))


def with_overheads(timings: Timings) -> Timings:
    """What each takes more than the baseline, in percent: of medians, and of means as in the paper."""
    base = timings[BASELINE]
    return {BASELINE: base} | {
        scheme: timing
        | {
            "overhead_percent": percent_above(timing["median_ms"], base["median_ms"]),
            "overhead_of_means_percent": percent_above(timing["mean_ms"], base["mean_ms"]),
        }
        for scheme, timing in timings.items()
        if scheme != BASELINE
    }


def percent_above(value: float | None, base: float | None) -> float | None:
    """How much more, in percent; None where there is nothing to compare.

    >>> round(percent_above(1.05, 1.0), 6), percent_above(None, 1.0)
    (5.0, None)
    """
    return None if value is None or not base else 100 * (value / base - 1)


def in_short(acceleration: str, timings: Mapping[str, Mapping[str, Any]]) -> str:
    """
    >>> rope, content = {"median_ms": 42.0}, {"median_ms": 46.3, "overhead_percent": 10.238}
    >>> in_short("none", {"rope": rope, "content": content})
    'eager: rope 42.0 ms, content +10.2%'
    """
    words = []
    for scheme, timing in timings.items():
        median, more = timing["median_ms"], timing.get("overhead_percent")
        if median is None:
            found = f"failed ({timing['failed']})"
        else:
            found = f"{median:.1f} ms" if more is None else f"{more:+.1f}%"
        words.append(f"{scheme} {found}")
    return f"{WORDS[acceleration]}: {', '.join(words)}"


def _facts(row: Row, device: str) -> dict[str, Any]:
    size = row.model
    return {
        "batch": row.batch,
        "length": row.length,
        "size": {"dim": size.dim, "layers": size.layers, "heads": size.heads},
        "environment": environment(device),
    }
