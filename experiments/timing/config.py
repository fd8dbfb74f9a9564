"""Settings of the timing experiment: rows of its table, what is compared in them, and the runs that have a name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from contentrope import schemes as known
from contentrope.attention import BACKENDS
from contentrope.config import ModelConfig
from contentrope.errors import InputError
from contentrope.schemes.variants import parse_variant
from contentrope.training import TrainConfig
from contentrope.training.config import Precision
from contentrope.training.sizes import ModelSize
from contentrope.training.steps import UPDATES_BEFORE_CAPTURE
from experiments.experiment import require_choices, require_integers, require_lists

BASELINE = "rope"
"""What everything else is compared with."""
TERMINATOR = 0
"""The token that closes a unit."""
Rotary = Literal["compiled", "eager"]
Acceleration = Literal["none", "compile", "graphs"]

LENGTH, LONGEST = 1024, 2**24
"""Tokens of a sequence where a row's name does not say, and at most."""
SIZES = {
    "0.8M": (ModelSize(dim=128, layers=4, heads=4), 8),
    "85M": (ModelSize(dim=768, layers=12, heads=12), 4),
    "302M": (ModelSize(dim=1024, layers=24, heads=16), 2),
    "680M": (ModelSize(dim=1536, layers=24, heads=16), 1),
    "3M": (ModelSize(dim=256, layers=4, heads=4), 2),
}
"""Size of the model, and sequences a step at 1,024 tokens; all but the last are the paper's."""
VOCABULARY = 65
"""The paper does not say which it timed. With the characters of its other experiment RoPE has 810,049, 85,155,905,
302,444,609 and 680,159,297 parameters, which is what its table rounds to."""


@dataclass(frozen=True)
class Row:
    """A row of the table: a size, and how many sequences of how many tokens a step sees."""

    size: str
    length: int = LENGTH

    @property
    def name(self) -> str:
        """
        >>> Row("85M").name, Row("85M", 8192).name
        ('85M', '85M at 8,192')
        """
        return self.size if self.length == LENGTH else f"{self.size} at {self.length:,}"

    @property
    def model(self) -> ModelSize:
        return SIZES[self.size][0]

    @property
    def batch(self) -> int:
        """Sequences a step: fewer where they are longer, so that a step sees as many tokens, but never more.

        >>> [Row("0.8M", length).batch for length in (256, 1024, 2048, 32768)]
        [8, 8, 4, 1]
        """
        sequences = SIZES[self.size][1]
        return max(1, min(sequences, sequences * LENGTH // self.length))


def parse_row(name: str) -> Row:
    """A row by its name: a size, or a size and the tokens of a sequence.

    >>> parse_row("302M"), parse_row("85M at 8,192")
    (Row(size='302M', length=1024), Row(size='85M', length=8192))
    """
    found = re.fullmatch(r"(\S+)(?: at ([0-9][0-9,]*))?", name)
    if found is None or found[1] not in SIZES:
        raise InputError(f"unknown row {name!r}; write a size or a size and a length, as in 85M or '85M at 8192'; "
                         f"sizes are {', '.join(SIZES)}")  # fmt: skip
    length = int(found[2].replace(",", "")) if found[2] else LENGTH
    if not 2 <= length <= LONGEST:
        raise InputError(f"row {name!r} has sequences of {length} tokens; 2 to {LONGEST:,} can be timed")
    return Row(found[1], length)


@dataclass(frozen=True, kw_only=True)
class TimingConfig:
    """What decides the numbers of a run."""

    variants: tuple[str, ...] = ("0.8M", "85M", "302M", "680M")
    """The rows to time: a size, with 1,024 tokens a sequence, or a size and a length, such as '85M at 8,192'."""
    seeds: int = 1
    """Repetitions of every row, with other weights and tokens."""
    schemes: tuple[str, ...] = ("content", "content:competition=1")
    """What to compare with rope: scheme, or scheme:option=value,option=value."""
    accelerations: tuple[Acceleration, ...] = ("none", "compile", "graphs")
    """none: an eager step; compile: torch.compile; graphs: that, and the whole step as one CUDA graph."""
    backend: str = "auto"
    """Attention of the schemes with addresses."""
    rotary: Rotary = "compiled"
    """How rope rotates queries and keys in a step that is eager otherwise; compiled makes it as fast as it gets."""
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
        # One name for one row, however it was written: it is the key of the results.
        object.__setattr__(self, "variants", tuple(parse_row(name).name for name in self.variants))
        require_lists(self, "variants", "schemes", "accelerations")
        require_integers(self, seeds=1, timed_steps=1, warmup_steps=1, unit_length=1, vocabulary=2)
        require_choices(self, backend=("auto", *BACKENDS), rotary=get_args(Rotary), precision=get_args(Precision))
        for acceleration in self.accelerations:
            if acceleration not in get_args(Acceleration):
                choices = ", ".join(get_args(Acceleration))
                raise InputError(f"unknown acceleration {acceleration!r}; choose of {choices}")
        for scheme in self.schemes:
            parse_variant(scheme)
        if BASELINE in self.schemes:
            raise InputError(f"{BASELINE} is what schemes are compared with and is timed anyway; leave it out")
        if "graphs" in self.accelerations and self.warmup_steps <= UPDATES_BEFORE_CAPTURE:
            raise InputError(
                f"with graphs, warmup_steps must be above {UPDATES_BEFORE_CAPTURE}, got {self.warmup_steps}: "
                "the step that captures the graph would be timed"
            )

    @property
    def contenders(self) -> tuple[str, ...]:
        """All that take turns, the baseline first."""
        return BASELINE, *self.schemes

    def model_of(self, scheme: str, row: Row) -> ModelConfig:
        return row.model.model(scheme, vocab_size=self.vocabulary, terminators=(TERMINATOR,))

    def backend_of(self, scheme: str) -> str:
        """Schemes without addresses have no choice of backend."""
        return self.backend if known.kind(parse_variant(scheme).scheme).knows_memory_units else "auto"

    def training_of(self, row: Row, acceleration: Acceleration, seed: int) -> TrainConfig:
        return TrainConfig(
            steps=self.warmup_steps + self.timed_steps,
            batch_size=row.batch,
            schedule="constant",
            precision=self.precision,
            acceleration=acceleration,
            seed=seed,
        )


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
