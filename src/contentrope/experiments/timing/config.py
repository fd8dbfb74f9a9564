"""Settings of the timing experiment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from contentrope import schemes as known
from contentrope.attention import BACKENDS
from contentrope.config import ModelConfig
from contentrope.errors import InputError
from contentrope.experiments.timing.rows import VOCABULARY, Row, parse_row
from contentrope.experiments.variants import parse_variant
from contentrope.training import TrainConfig
from contentrope.training.config import Precision
from contentrope.training.steps import UPDATES_BEFORE_CAPTURE

BASELINE = "rope"
"""What everything else is compared with."""
TERMINATOR = 0
"""The token that closes a unit."""
Rotary = Literal["compiled", "eager"]
ACCELERATIONS = ("none", "compile", "graphs")


@dataclass(frozen=True, kw_only=True)
class TimingConfig:
    """What decides the numbers of a run."""

    variants: tuple[str, ...] = ("0.8M", "85M", "302M", "680M")
    """The rows to time: a size, with 1,024 tokens a sequence, or a size and a length, such as 85M at 8,192."""
    seeds: int = 1
    """Repetitions of every row, with other weights and tokens."""
    schemes: tuple[str, ...] = ("content", "content:competition=1")
    """What to compare with rope: scheme, or scheme:option=value,option=value."""
    accelerations: tuple[str, ...] = ACCELERATIONS
    """none: an eager step; compile: torch.compile; graphs: that, and the whole step as one CUDA graph."""
    backend: str = "auto"
    """Attention of the schemes with addresses."""
    rotary: Rotary = "compiled"
    """How rope turns queries and keys in a step that is eager otherwise; compiled makes it as fast as it gets."""
    precision: Precision = "bf16"
    """float32; tf32: matrix products in TensorFloat-32; bf16: autocast."""
    timed_steps: int = 10
    """Steps that are timed, of each model."""
    warmup_steps: int = 5
    """Steps before them, in which kernels are compiled and captured."""
    unit_length: int = 40
    """Mean tokens of a unit; where units end is drawn at random."""
    vocabulary: int = VOCABULARY
    """Token ids; 65 give the parameter counts of the paper's table."""

    def __post_init__(self) -> None:
        for name in ("variants", "schemes", "accelerations"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        # One name for one row, however it was written: it is the key of the results.
        object.__setattr__(self, "variants", tuple(parse_row(name).name for name in self.variants))
        self._check_lists()
        least = {"seeds": 1, "timed_steps": 1, "warmup_steps": 1, "unit_length": 1, "vocabulary": 2}
        for name, smallest in least.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
                raise InputError(f"{name} must be an integer of at least {smallest}, got {value!r}")
        choices = {"backend": ("auto", *BACKENDS), "rotary": get_args(Rotary), "precision": get_args(Precision)}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} must be one of {', '.join(allowed)}; got {getattr(self, name)!r}")
        if "graphs" in self.accelerations and self.warmup_steps <= UPDATES_BEFORE_CAPTURE:
            raise InputError(
                f"with graphs, warmup_steps must be above {UPDATES_BEFORE_CAPTURE}, got {self.warmup_steps}: "
                "the step that captures the graph would be timed"
            )

    def _check_lists(self) -> None:
        for name in ("variants", "schemes", "accelerations"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise InputError(f"{name} must name one or more different values, got {values}")
        for acceleration in self.accelerations:
            if acceleration not in ACCELERATIONS:
                raise InputError(f"unknown acceleration {acceleration!r}; choose of {', '.join(ACCELERATIONS)}")
        for scheme in self.schemes:
            parse_variant(scheme)
        if BASELINE in self.schemes:
            raise InputError(f"{BASELINE} is what schemes are compared with and is timed anyway; leave it out")

    @property
    def contenders(self) -> tuple[str, ...]:
        """All that take turns, the baseline first."""
        return BASELINE, *self.schemes

    def model_of(self, scheme: str, row: Row) -> ModelConfig:
        return row.model.model(scheme, vocab_size=self.vocabulary, terminators=(TERMINATOR,))

    def backend_of(self, scheme: str) -> str:
        """Schemes without addresses have no choice of backend."""
        return self.backend if parse_variant(scheme).scheme in known.KNOW_MEMORY else "auto"

    def training_of(self, row: Row, acceleration: str, seed: int) -> TrainConfig:
        return TrainConfig(
            steps=self.warmup_steps + self.timed_steps,
            batch_size=row.batch,
            schedule="constant",
            precision=self.precision,
            acceleration=acceleration,  # type: ignore[arg-type]  # checked above
            seed=seed,
        )
