"""Settings of the context-growth experiment."""

from __future__ import annotations

from dataclasses import dataclass, field

from contentrope.config import ModelConfig
from contentrope.corpora import CharVocabulary
from contentrope.errors import InputError
from contentrope.experiments.first_weights import FirstWeights, check_first_weights
from contentrope.experiments.sizes import ModelSize
from contentrope.experiments.variants import parse_variant
from contentrope.training import TrainConfig

RECENT = 512
"""Characters of a long window that are scored when the text before them is changed."""


@dataclass(frozen=True, kw_only=True)
class GrowthConfig:
    """What decides the numbers of a run."""

    variants: tuple[str, ...] = ("content", "content:competition=1", "rope")
    """What to compare: scheme, or scheme:option=value,option=value."""
    seeds: int = 1
    """Runs per variant, with the seeds 0, 1, 2, ..."""
    corpus: str = "shakespeare"
    """shakespeare, stdlib (the sources of Python's standard library), or a text file or folder."""
    characters: int | None = 1_000_000
    """Only the first characters of the text: nine tenths to train on, the rest to evaluate."""
    length: int = 256
    """Characters per training window."""
    lengths: tuple[int, ...] = (256, 512, 1024, 2048, 4096)
    """Characters per evaluation window."""
    once: tuple[int, ...] = ()
    """Evaluation windows for the first seed alone: very long ones."""
    distant: int = 0
    """Measure the use of distant text in windows of so many characters; 0: leave it out."""
    search: bool = False
    """Evaluate on the last tenth of the training part: for choosing settings, so that validation text stays unseen."""
    initialisation: FirstWeights = "small"
    """First weights. small: normal, 0.02; linear: linear layers as PyTorch's begin, embeddings small; torch: embeddings
    too, of size one; torch-all: addresses too, which else begin at zero."""
    model: ModelSize = field(default_factory=ModelSize)
    training: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        for name in ("variants", "lengths", "once"):
            values = tuple(getattr(self, name))
            object.__setattr__(self, name, values)
            if len(set(values)) < len(values) or not (values or name == "once"):
                raise InputError(f"{name} must name one or more different values, got {values}")
        if isinstance(self.seeds, bool) or not isinstance(self.seeds, int) or self.seeds < 1:
            raise InputError(f"seeds must be an integer of at least 1, got {self.seeds!r}")
        if min((self.length, *self.lengths, *self.once)) < 1 or self.distant < 0:
            raise InputError(
                f"lengths must be at least 1, got {self.lengths}, once {self.once}, length {self.length}, "
                f"distant {self.distant}"
            )
        if 0 < self.distant <= RECENT:
            raise InputError(f"distant must be 0 or more than {RECENT}, the characters that count as recent")
        check_first_weights(self.initialisation)
        for variant in self.variants:
            parse_variant(variant)

    def scored_tokens(self, held_out: int) -> int:
        """Whole windows of the longest kind, so that every length scores the same characters."""
        longest = max(self.lengths)
        scored = (held_out - 1) // longest * longest
        if held_out - 1 < max((longest, *self.once)) or scored < self.distant:
            raise InputError(
                f"windows of {max((longest, *self.once, self.distant))} characters do not fit: the text leaves "
                f"{held_out - 1} to score; take a longer text, or shorter lengths"
            )
        return scored

    def model_of(self, name: str, vocabulary: CharVocabulary) -> ModelConfig:
        return model_config(name, self.model, vocabulary)


def model_config(variant: str, size: ModelSize, vocabulary: CharVocabulary) -> ModelConfig:
    """The settings of a character model whose units are lines."""
    if "\n" not in vocabulary.symbols:
        raise InputError("units are lines, and the part of the text to train on has no line break; take another text")
    return size.model(variant, vocab_size=len(vocabulary), terminators=(vocabulary.id_of("\n"),))
