"""``contentrope reproduce shakespeare``: the context-growth experiment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from contentrope.cli.options import one
from contentrope.cli.reproduce.common import OF_THE_PRESET, Initialisation, Integer, Integers, TrainingReproduction
from contentrope.experiments.growth import PRESETS, Growth, GrowthConfig

Corpus = Annotated[str | None, one(str, "{shakespeare,stdlib,PATH}"), OF_THE_PRESET]


@dataclass(frozen=True)
class Shakespeare(TrainingReproduction):
    """Train on short windows of text, then read longer and longer ones: which variant keeps its perplexity?

    - DIR/results.json: all numbers and settings; DIR/report.html and DIR/report.md: tables and figures
    - DIR/runs: the trained models, for `contentrope evaluate` and `generate`

    The same command again continues where it was stopped; seeds and variants can be added later.

    Any other change to a preset is recorded under the name "custom".

    Example: contentrope reproduce shakespeare --preset paper --seeds 5 --device cuda --jobs 4
    """

    corpus: Corpus = None
    """Text to train and evaluate on; a text file or folder is taken whole."""
    characters: Integer = None
    """Only the first characters of the text: nine tenths to train on, the rest to evaluate."""
    lengths: Integers = None
    """Characters per evaluation window."""
    distant: Integer = None
    """Also measure the use of distant text, in windows of so many characters; 0 leaves it out."""

    initialisation: Initialisation = None
    """First weights: normal and small, or as PyTorch's layers begin: the linear ones, embeddings too, addresses too."""

    PRESETS: ClassVar = PRESETS
    OWN: ClassVar = ("corpus", "characters", "lengths", "distant", "initialisation")

    def experiment(self, config: GrowthConfig) -> Growth:
        return Growth(config)

    def _changes(self, preset: GrowthConfig) -> dict[str, Any]:
        changes = super()._changes(preset)
        if self.corpus not in (None, preset.corpus) and self.characters is None:
            changes["characters"] = None
        return changes
