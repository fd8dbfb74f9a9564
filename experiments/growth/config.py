"""Settings of the growth experiment, and the runs that have a name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from contentrope.config import ModelConfig
from contentrope.corpora import CharVocabulary
from contentrope.errors import InputError
from contentrope.schemes.variants import parse_variant
from contentrope.training import TrainConfig
from contentrope.training.sizes import ModelSize, character_model
from experiments.experiment import require_choices, require_integers, require_lists
from experiments.initialisation import Initialisation

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
    initialisation: Initialisation = "small"
    """small: normal, 0.02; linear: linear layers as PyTorch's begin, embeddings small; torch: embeddings
    too, of size one; torch-all: addresses too, which else begin at zero."""
    model: ModelSize = field(default_factory=ModelSize)
    training: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        require_lists(self, "variants", "lengths", "once", may_be_empty=("once",))
        require_integers(self, seeds=1)
        if min((self.length, *self.lengths, *self.once)) < 1 or self.distant < 0:
            raise InputError(
                f"lengths must be at least 1, got {self.lengths}, once {self.once}, length {self.length}, "
                f"distant {self.distant}"
            )
        if 0 < self.distant <= RECENT:
            raise InputError(f"distant must be 0 or more than {RECENT}, the characters that count as recent")
        require_choices(self, initialisation=get_args(Initialisation))
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
        return character_model(name, self.model, vocabulary)


QUICK = GrowthConfig(
    variants=("content", "content:competition=1", "rope"),
    corpus="stdlib",
    characters=1_200_000,
    length=128,
    lengths=(128, 256, 512, 1024),
    model=ModelSize(layers=3),
    training=TrainConfig(steps=400, batch_size=16, learning_rate=1e-3, warmup=40),
)
"""A few minutes on two CPU cores, on a text every Python installation carries."""

PAPER = GrowthConfig(
    variants=(
        "content",
        "random",
        "alibi",
        "rope",
        "content:frequencies=model_wide",
        "random:frequencies=model_wide",
        "rope:frequencies=model_wide",
    ),
    seeds=3,
    training=TrainConfig(precision="bf16"),
)
"""Appendix A.1 of the paper to the letter, with both layouts of frequencies it leaves open."""

LEARNED = "competition=1,learn_competition=true"
BEYOND = GrowthConfig(
    variants=(
        f"content:{LEARNED},window=128",
        f"content:{LEARNED},window=64",
        f"random:{LEARNED},window=128",
        f"local:{LEARNED},window=128",
        f"content:{LEARNED}",
        "cope",
        "path",
        f"random:{LEARNED}",
        "random",
        "local",
        "rope",
        "alibi",
        "nope",
        "pi:factor=64",
        "ntk:factor=64",
        "yarn:factor=64",
        "randomized:range=65536",
        "bipe",
    ),
    seeds=3,
    lengths=(256, 512, 1024, 2048, 4096, 8192, 16384),
    once=(65536,),
    distant=4096,
    model=ModelSize(dropout=0.1, attention_dropout=0.2),
    training=TrainConfig(steps=2500, learning_rate=3e-3, warmup=100, precision="bf16"),
)
"""The same text and size with our extensions, against every baseline under the same regularisation."""

PRESETS = {"quick": QUICK, "paper": PAPER, "beyond": BEYOND}
