"""Settings of the retrofit experiment, and the runs that have a name."""

from __future__ import annotations

from dataclasses import dataclass, field

from contentrope.errors import InputError
from contentrope.training import TrainConfig
from experiments.conversions import UNTOUCHED, parse_conversion
from experiments.experiment import require_integers, require_lists

LONGEST_UNIT = 256
"""Tokens; a unit that gets longer ends there."""


@dataclass(frozen=True, kw_only=True)
class LlamaSize:
    """The model that is trained here to be converted: Llama's architecture, one token a character."""

    dim: int = 256
    layers: int = 4
    heads: int = 8
    dropout: float = 0.1
    """On what each block adds, in training and in conversion; the saved model knows nothing of it."""

    def __post_init__(self) -> None:
        if min(self.dim, self.layers, self.heads) < 1 or self.dim % (2 * self.heads):
            raise InputError(
                f"dim {self.dim} must divide into heads {self.heads} of an even size, and layers be positive"
            )
        if not 0.0 <= self.dropout < 1.0:
            raise InputError(f"dropout must be at least 0 and below 1, got {self.dropout}")


@dataclass(frozen=True, kw_only=True)
class RetrofitConfig:
    """What decides the numbers of a run."""

    variants: tuple[str, ...] = (
        UNTOUCHED,
        "rope",
        "content",
        "content:window=64",
        "content:window=128",
        "content:window=128,train=lora",
        "content:window=128,train=nothing",
        "content:positions=gated",
        "content:train=lora",
        "content:train=addresses",
        "content:start=back,train=nothing",
        "pi:factor=16",
        "ntk:factor=16",
        "yarn:factor=16",
    )
    """What to compare: untouched, or content, rope, pi, ntk, yarn with options."""
    seeds: int = 1
    """Originals, each converted by every variant, with the seeds 0, 1, 2, ..."""
    model: str | None = None
    """Folder or hub name of the model to convert; None: one of ``size`` is trained here, by ``pretraining``."""
    text: tuple[str, ...] = ("shakespeare",)
    """shakespeare, stdlib (the sources of Python's standard library), or text files and folders."""
    characters: int | None = 1_000_000
    """Only the first characters of the text: nine tenths to train on, the rest to evaluate."""
    units: str = "line"
    """What has an address: line, sentence, paragraph, record, document, or a number of tokens."""
    marker: str | None = None
    """Text that ends a record, or a document."""
    length: int = 256
    """Tokens per training window."""
    times: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Evaluation windows, in training lengths."""
    gate_share: float = 0.25
    """Share of the conversion in which a gate falls from global to local positions."""
    size: LlamaSize = field(default_factory=LlamaSize)
    pretraining: TrainConfig = field(default_factory=TrainConfig)
    training: TrainConfig = field(default_factory=lambda: TrainConfig(steps=500))
    """Of the conversion."""

    def __post_init__(self) -> None:
        require_lists(self, "variants", "text", "times")
        require_integers(self, seeds=1)
        if min(self.length, *self.times) < 1:
            raise InputError(f"length and times must be at least 1, got {self.length} and {self.times}")
        if not 0.0 < self.gate_share <= 1.0:
            raise InputError(f"gate_share must be above 0 and at most 1, got {self.gate_share}")
        for variant in self.variants:
            parse_conversion(variant)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens per evaluation window."""
        return tuple(self.length * times for times in self.times)

    @property
    def longest_unit(self) -> int:
        """Local positions must not go beyond those of training."""
        return min(LONGEST_UNIT, self.length)

    def scored_tokens(self, held_out: int) -> int:
        """Whole windows of the longest kind, so that every length scores the same tokens."""
        longest = max(self.lengths)
        if held_out - 1 < longest:
            raise InputError(
                f"windows of {longest} tokens do not fit: the text leaves {held_out - 1} to score; take a longer text, "
                "or a smaller length"
            )
        return (held_out - 1) // longest * longest


QUICK = RetrofitConfig(
    text=("stdlib",),
    characters=1_000_000,
    length=128,
    size=LlamaSize(dim=128, layers=3, heads=4, dropout=0.0),
    pretraining=TrainConfig(steps=1000, batch_size=16, learning_rate=2e-3, warmup=100),
    training=TrainConfig(steps=100, batch_size=16, learning_rate=3e-4, warmup=10),
)
"""A few minutes on two CPU cores, on a text every Python installation carries."""

PAPER = RetrofitConfig(
    seeds=3,
    size=LlamaSize(dropout=0.2),
    pretraining=TrainConfig(steps=1500, batch_size=64, learning_rate=1e-3, warmup=100, precision="bf16"),
    training=TrainConfig(steps=150, batch_size=64, learning_rate=3e-4, warmup=15, precision="bf16"),
)
"""A model of three million parameters on Tiny Shakespeare, converted with a tenth of its steps; for a GPU."""

PRESETS = {"quick": QUICK, "paper": PAPER}
