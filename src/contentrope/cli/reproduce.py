"""``contentrope reproduce shakespeare``: the context-growth experiment, by the name of a preset."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_args

from tyro.conf import arg

from contentrope.cli.options import Device, chosen_device, one, require_folder, several
from contentrope.cli.report import show_results
from contentrope.cli.tables import SavingConsole, say
from contentrope.errors import InputError
from contentrope.experiments import growth
from contentrope.experiments.display import progress_display
from contentrope.experiments.growth import PRESETS, GrowthConfig
from contentrope.training import TrainConfig
from contentrope.training.config import Precision

OF_THE_PRESET = arg(help_behavior_hint="(default: the preset's)")
Integer = Annotated[int | None, one(int, "INT"), OF_THE_PRESET]
Integers = Annotated[tuple[int, ...] | None, several(int, "INT"), OF_THE_PRESET]
Names = Annotated[tuple[str, ...] | None, several(str, "VARIANT"), OF_THE_PRESET]
Corpus = Annotated[str | None, one(str, "{shakespeare,stdlib,PATH}"), OF_THE_PRESET]
Choice = Annotated[Precision | None, one(str, "", get_args(Precision)), OF_THE_PRESET]
Folder = Annotated[Path | None, one(Path, "DIR"), arg(help_behavior_hint="(default: runs/shakespeare-PRESET)")]


@dataclass(frozen=True)
class Shakespeare:
    """Train on short windows of text, then read longer and longer ones: which variant keeps its perplexity?

    - DIR/results.json: all numbers and settings; DIR/report.html and DIR/report.md: tables and figures
    - DIR/runs: the trained models, for `contentrope evaluate` and `generate`

    The same command again continues where it was stopped; seeds and variants can be added later.

    Any other change to a preset is recorded under the name "custom".

    Example: contentrope reproduce shakespeare --preset paper --seeds 5 --device cuda --jobs 4
    """

    preset: Annotated[str, arg(metavar="{" + ",".join(PRESETS) + "}")] = "quick"
    """Settings to begin with: quick takes minutes on a CPU, the others are meant for a GPU."""
    seeds: Integer = None
    """Runs per variant, with the seeds 0, 1, 2, ..."""
    variants: Names = None
    """What to compare: scheme, or scheme:option=value,option=value, such as content:competition=1."""
    out: Folder = None
    """Folder for everything that is written."""
    device: Device = None
    """Where to compute."""
    jobs: int = 1
    """Variants computed at the same time, each in a process of its own."""
    corpus: Corpus = None
    """Text to train and evaluate on; a text file or folder is taken whole."""
    characters: Integer = None
    """Only the first characters of the text: nine tenths to train on, the rest to evaluate."""
    lengths: Integers = None
    """Characters per evaluation window."""
    distant: Integer = None
    """Also measure the use of distant text, in windows of so many characters; 0 leaves it out."""
    steps: Integer = None
    """Updates per run; the warm-up keeps its share of them."""
    batch_size: Integer = None
    """Windows per update."""
    precision: Choice = None
    """How a GPU multiplies matrices."""

    def run(self) -> None:
        config, name = self.settings()
        out = self.out or Path(f"runs/shakespeare-{name}")
        require_folder(out)
        device, console = chosen_device(self.device), SavingConsole()
        try:
            with progress_display(console) as progress:
                results = growth.run(config, out, progress, device, preset=name, jobs=self.jobs, asked=self.asked())
        except KeyboardInterrupt:
            if (out / "results.json").exists():
                say(console, f"For a report of the finished runs: contentrope report {out}")
            raise
        show_results(console, results, out)
        say(console, f"written: {out / 'results.json'}")

    def asked(self) -> list[str]:
        """The options that decide the numbers, as they would be typed; the results tell the seeds and variants."""
        words = ["--preset", self.preset]
        for name in ("corpus", "characters", "lengths", "distant", "steps", "batch_size", "precision"):
            value = getattr(self, name)
            if value is not None:
                values = value if isinstance(value, tuple) else (value,)
                words += [f"--{name.replace('_', '-')}", *map(str, values)]
        return words

    def settings(self) -> tuple[GrowthConfig, str]:
        """The settings asked for, and the name they are recorded under."""
        if self.preset not in PRESETS:
            raise InputError(f"unknown preset {self.preset!r}; choose {', '.join(PRESETS)}")
        preset = PRESETS[self.preset]
        changes: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("seeds", "variants", "corpus", "characters", "lengths", "distant")
            if getattr(self, name) is not None
        }
        if self.corpus not in (None, preset.corpus) and self.characters is None:
            changes["characters"] = None
        config = replace(preset, **changes, training=self._training(preset.training))
        same = replace(config, seeds=preset.seeds, variants=preset.variants) == preset
        return config, self.preset if same else "custom"

    def _training(self, preset: TrainConfig) -> TrainConfig:
        changes: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("steps", "batch_size", "precision")
            if getattr(self, name) is not None
        }
        if self.steps is not None:
            changes["warmup"] = preset.warmup * self.steps // preset.steps
        return replace(preset, **changes)
