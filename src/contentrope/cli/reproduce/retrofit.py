"""``contentrope reproduce retrofit``: content addresses for a finished model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from tyro.conf import arg

from contentrope.cli.options import Marker, one, require_no_file, several
from contentrope.cli.reproduce.common import OF_THE_PRESET, Integer, Integers, Number, TrainingReproduction, Variants
from contentrope.experiments.retrofit import PRESETS, RetrofitConfig
from contentrope.experiments.retrofit import Retrofit as Experiment

Model = Annotated[str | None, one(str, "MODEL"), arg(help_behavior_hint="(default: one is trained first)")]
Texts = Annotated[tuple[str, ...] | None, several(str, "TEXT"), OF_THE_PRESET]
Units = Annotated[str | None, one(str, "UNITS"), OF_THE_PRESET]


@dataclass(frozen=True)
class Retrofit(TrainingReproduction):
    """Give a finished model content addresses with a tenth of its training, then read longer and longer windows.

    - DIR/results.json: all numbers and settings; DIR/report.html and DIR/report.md: tables and figures
    - DIR/originals: the models that are converted; DIR/runs: the converted ones, for `contentrope generate --model`

    Compared are ways to convert it (positions=gated or local, train=all, lora or addresses), rescaled frequencies
    (pi, ntk, yarn) with as many steps, and the original untouched. The same command again continues where it was
    stopped; seeds and variants can be added later. Any other change to a preset is recorded under the name "custom".

    Example: contentrope reproduce retrofit --preset paper --device cuda --jobs 4

    Your own checkpoint: contentrope reproduce retrofit --model DIR --text my-texts/ --length 1024 --steps 200
    """

    preset: Annotated[str, arg(metavar="{quick,paper}")] = "quick"
    """Settings to begin with: quick takes minutes on a CPU, paper is meant for a GPU."""
    variants: Variants = None
    """What to compare: untouched, rope, content, pi, ntk, yarn, with options as in content:train=lora,rank=8."""
    model: Model = None
    """Folder or hub name of a causal language model to convert."""
    text: Texts = None
    """Texts to train and evaluate on: shakespeare, stdlib, files or folders."""
    characters: Integer = None
    """Only the first characters of the text: nine tenths to train on, the rest to evaluate."""
    units: Units = None
    """What has an address: line, sentence, paragraph, record, document, or a number of tokens."""
    marker: Marker = None
    """Text that ends a record, or a document."""
    length: Integer = None
    """Tokens per training window."""
    times: Integers = None
    """Evaluation windows, in training lengths."""
    steps: Integer = None
    """Updates per conversion; the warm-up keeps its share of them."""
    learning_rate: Number = None
    """Peak of the learning rate of a conversion; the original keeps the preset's."""
    original_steps: Integer = None
    """Updates of the original, where none is given."""

    PRESETS: ClassVar = PRESETS
    OWN: ClassVar = ("model", "text", "characters", "units", "marker", "length", "times")

    def experiment(self, config: RetrofitConfig) -> Experiment:
        if self.model is not None:
            require_no_file(self.model)
        return Experiment(config)

    def _options(self) -> tuple[str, ...]:
        return (*super()._options(), "original_steps")

    def _changes(self, preset: RetrofitConfig) -> dict[str, Any]:
        changes = super()._changes(preset)
        if self.text not in (None, preset.text) and self.characters is None:
            changes["characters"] = None
        original = replace(self, steps=self.original_steps, learning_rate=None)
        return changes | {"pretraining": original._training(preset.pretraining)}
