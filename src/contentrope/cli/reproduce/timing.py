"""``contentrope reproduce timing``: what addresses cost a training step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, get_args

from tyro.conf import arg

from contentrope.attention import BACKENDS
from contentrope.cli.options import one, several
from contentrope.cli.reproduce.common import OF_THE_PRESET, Choice, Integer, Reproduction, Variants
from contentrope.experiments.timing import PRESETS, TimingConfig
from contentrope.experiments.timing import Timing as Experiment
from contentrope.experiments.timing.config import Rotary
from contentrope.experiments.timing.measure import require_one_job

Rows = Annotated[tuple[str, ...] | None, several(str, "ROW"), OF_THE_PRESET]
Accelerations = Annotated[tuple[str, ...] | None, several(str, "{none,compile,graphs}"), OF_THE_PRESET]
Backend = Annotated[str | None, one(str, "", ("auto", *BACKENDS)), OF_THE_PRESET]
RotaryChoice = Annotated[Rotary | None, one(str, "", get_args(Rotary)), OF_THE_PRESET]


@dataclass(frozen=True)
class Timing(Reproduction):
    """Time whole training steps: how much longer do they take with addresses than with plain RoPE?

    - DIR/results.json: all numbers and settings; DIR/report.html and DIR/report.md: tables and a picture

    Rows are a size, 0.8M, 85M, 302M or 680M as in the paper, with 1,024 tokens a sequence, or a size and a length,
    such as '85M at 8192'. The same command again continues where it was stopped; rows and seeds can be added later.

    Any other change to a preset is recorded under the name "custom". Use the device for nothing else meanwhile.

    Example: contentrope reproduce timing --preset paper --device cuda --backend fused
    """

    preset: Annotated[str, arg(metavar="{quick,paper}")] = "quick"
    """Settings to begin with: quick takes a minute or two on a CPU, paper is meant for a GPU."""
    seeds: Integer = None
    """Repetitions of every row."""
    variants: Rows = None
    """The rows to time: a size, or a size and the tokens of a sequence."""
    jobs: int = 1
    """Always 1: rows timed at the same time would disturb each other."""
    schemes: Variants = None
    """What to compare with rope: scheme, or scheme:option=value,option=value."""
    accelerations: Accelerations = None
    """none: an eager step; compile: torch.compile; graphs: that, and the step as one CUDA graph."""
    backend: Backend = None
    """Attention of the schemes with addresses."""
    rotary: RotaryChoice = None
    """How rope turns queries and keys in a step that is eager otherwise."""
    precision: Choice = None
    """How matrices are multiplied."""
    timed_steps: Integer = None
    """Steps that are timed, of each model."""
    warmup_steps: Integer = None
    """Steps before them, in which kernels are compiled."""
    unit_length: Integer = None
    """Mean tokens of a unit."""

    PRESETS: ClassVar = PRESETS
    OWN: ClassVar = (
        "schemes", "accelerations", "backend", "rotary", "precision", "timed_steps", "warmup_steps", "unit_length",
    )  # fmt: skip

    def experiment(self, config: TimingConfig) -> Experiment:
        require_one_job(self.jobs)
        return Experiment(config)
