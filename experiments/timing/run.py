"""One row: every contender trained for some steps, in turn, eager and compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from contentrope import schemes
from contentrope.config import PairLayout
from contentrope.context import Chunk, PlainContext, Projected
from contentrope.model import Transformer
from contentrope.results import environment
from contentrope.rotary import Rotation, rotate
from contentrope.schemes import Scheme
from contentrope.training import Batch, Stepper
from contentrope.training.batches import mixed_seed
from contentrope.training.seeds import seeded
from experiments.experiment import Evaluated, Experiment, Finished, Tell
from experiments.timing.config import BASELINE, TERMINATOR, Acceleration, Row, TimingConfig, parse_row
from experiments.timing.race import REFUSALS, Gauge, race

Timings = dict[str, dict[str, Any]]
WORDS = {"none": "eager", "compile": "compiled", "graphs": "as one graph"}


@dataclass(frozen=True)
class Timing(Experiment):
    config: TimingConfig

    name = "timing"
    alone = True

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
        about = {"batch": row.batch, "length": row.length, "size": {name: asdict(row.model)[name] for name in SIZE}}
        for seed in seeds:
            found: dict[str, Timings] = {}
            for acceleration in self.config.accelerations:
                with seeded(seed):  # every step sets the state of all random numbers
                    found[acceleration] = self._timings(row, acceleration, seed, gauge, tell)
                torch.compiler.reset()  # what was compiled would keep its model alive, and slow the look for what is
                gauge.free()
                tell(Evaluated(variant, seed, in_short(acceleration, found[acceleration])))
            said = "; ".join(in_short(*item) for item in found.items())
            tell(Finished(variant, seed, about | {"environment": environment(device), "timings": found}, said))

    def _timings(self, row: Row, acceleration: Acceleration, seed: int, gauge: Gauge, tell: Tell) -> Timings:
        """One acceleration: by contender, its times and what it takes more than the baseline."""
        config, device = self.config, str(gauge.device)
        timings = race(
            {scheme: partial(self._stepper, scheme, row, acceleration, seed, device) for scheme in config.contenders},
            random_batches(config, row, seed, device),
            config.warmup_steps,
            gauge,
            lambda name: tell(Evaluated(row.name, seed, f"{name} runs {WORDS[acceleration]}")),
            # What a compiler cannot do on some machine is a gap in the table, not the end of it.
            REFUSALS if acceleration == "none" else (*REFUSALS, RuntimeError),
        )
        return with_overheads(timings)

    def _stepper(self, scheme: str, row: Row, acceleration: Acceleration, seed: int, device: str) -> Stepper:
        config = self.config
        with seeded(seed), torch.device(device):  # made there: the largest would take long to draw on a CPU
            model = Transformer(config.model_of(scheme, row), backend=config.backend_of(scheme))
        if scheme == BASELINE and acceleration == "none" and config.rotary == "compiled":
            model.scheme = CompiledRotary(model.scheme)
        return Stepper(model, config.training_of(row, acceleration, seed))


SIZE = ("dim", "layers", "heads")


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


# --- what the timed steps see --------------------------------------------------------------------------------------


def random_batches(config: TimingConfig, row: Row, seed: int, device: str) -> list[Batch]:
    """A batch for every step, the same for every contender, on the device before the clock starts."""
    batches = []
    for step in range(config.warmup_steps + config.timed_steps):
        generator = torch.Generator().manual_seed(mixed_seed(seed, step, 4))
        tokens = random_tokens(row.batch, row.length + 1, config, generator).to(device)
        batches.append(Batch({"ids": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()))
    return batches


def random_tokens(
    rows: int, length: int, config: TimingConfig, generator: torch.Generator
) -> Int[Tensor, "rows length"]:
    """Any token ends its unit with the same probability, so that units have the length asked for in the mean."""
    tokens = torch.randint(TERMINATOR + 1, config.vocabulary, (rows, length), generator=generator)
    ends = torch.rand(rows, length, generator=generator) < 1 / config.unit_length
    return tokens.masked_fill(ends, TERMINATOR)


# --- the baseline --------------------------------------------------------------------------------------------------


class CompiledRotary(Scheme):
    """RoPE as fast as it can be where the step is eager: queries and keys rotated by one compiled kernel.

    Eager rotations take a handful of kernels per layer. Beside such a baseline any addressing would look cheap.
    """

    def __init__(self, scheme: Scheme) -> None:
        nn.Module.__init__(self)  # the options are read already
        self.scheme = scheme
        self.rotate_both: Any = torch.compile(rotate_both, dynamic=False, fullgraph=True)

    def context(self, chunk: Chunk) -> PlainContext:
        plain = self.scheme.context(chunk)
        assert isinstance(plain, PlainContext)
        assert plain.rotation is not None
        return RotatedContext(chunk, plain.rotation, self.rotate_both)


class RotatedContext(PlainContext):
    """Plain attention whose queries and keys are rotated before it gets them."""

    def __init__(self, chunk: Chunk, rotation: Rotation, rotate_both: Any) -> None:
        super().__init__(chunk)
        self.rotated_by, self.rotate_both = rotation, rotate_both

    def attend(self, layer: int, hidden: Tensor, projected: Projected) -> Tensor:
        layout = self.chunk.config.rotary.pairs
        query, key = self.rotate_both(projected.query, projected.key, self.rotated_by, layout)
        return super().attend(layer, hidden, Projected(query, key, projected.value))


def rotate_both(query: Tensor, key: Tensor, rotation: Rotation, layout: PairLayout) -> tuple[Tensor, Tensor]:
    return rotate(query, rotation, layout), rotate(key, rotation, layout)
