"""What the commands of all experiments share: a preset, changes to it, and a run that can be stopped and taken up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args

from tyro.conf import arg

from contentrope.cli.options import Device, chosen_device, one, require_folder, several
from contentrope.cli.report import REPORT_TIME, show_results
from contentrope.cli.tables import SavingConsole, say
from contentrope.errors import InputError
from contentrope.experiments import suite
from contentrope.experiments.display import progress_display
from contentrope.experiments.first_weights import FirstWeights
from contentrope.outputs import REPORT, OutputFolder
from contentrope.training import TrainConfig
from contentrope.training.config import Precision, Schedule

OF_THE_PRESET = arg(help_behavior_hint="(default: the preset's)")
Integer = Annotated[int | None, one(int, "INT"), OF_THE_PRESET]
Integers = Annotated[tuple[int, ...] | None, several(int, "INT"), OF_THE_PRESET]
Variants = Annotated[tuple[str, ...] | None, several(str, "VARIANT"), OF_THE_PRESET]
Number = Annotated[float | None, one(float, "FLOAT"), OF_THE_PRESET]
Numbers = Annotated[tuple[float, ...] | None, several(float, "FLOAT"), OF_THE_PRESET]
Choice = Annotated[Precision | None, one(str, "", get_args(Precision)), OF_THE_PRESET]
Course = Annotated[Schedule | None, one(str, "", get_args(Schedule)), OF_THE_PRESET]
Initialisation = Annotated[FirstWeights | None, one(str, "", get_args(FirstWeights)), OF_THE_PRESET]
Folder = Annotated[Path | None, one(Path, "DIR"), arg(help_behavior_hint="(default: runs/EXPERIMENT-PRESET)")]

MOST_SEEDS = 10_000

TRAINING = ("steps", "batch_size", "learning_rate", "schedule", "weight_decay", "precision")
"""Options that are settings of the training."""


@dataclass(frozen=True)
class Reproduction:
    """An experiment with a preset; each experiment adds options of its own."""

    preset: Annotated[str, arg(metavar="{quick,paper,beyond}")] = "quick"
    """Settings to begin with: quick takes minutes on a CPU, the others are meant for a GPU."""
    seeds: Integer = None
    """Runs per variant, with the seeds 0, 1, 2, ..."""
    variants: Variants = None
    """What to compare: scheme, or scheme:option=value,option=value, such as content:competition=1."""
    out: Folder = None
    """Folder for everything that is written."""
    device: Device = None
    """Where to compute."""
    jobs: int = 1
    """Variants computed at the same time, each in a process of its own."""

    PRESETS: ClassVar[Mapping[str, Any]]
    OWN: ClassVar[tuple[str, ...]]
    """Options that are settings of this experiment alone."""

    def experiment(self, config: Any) -> suite.Experiment:
        raise NotImplementedError

    def run(self) -> None:
        if self.seeds is not None and self.seeds > MOST_SEEDS:
            raise InputError(f"seeds must be at most {MOST_SEEDS}, got {self.seeds}")
        config, name = self.settings()
        experiment = self.experiment(config)
        out = self.out or Path(f"runs/{experiment.name}-{name}")
        require_folder(out)
        device, console = chosen_device(self.device), SavingConsole()
        _claim_report(out)
        try:
            with progress_display(console) as progress:
                results = suite.run(experiment, out, progress, device, preset=name, jobs=self.jobs, asked=self.asked())
        except KeyboardInterrupt:
            if (out / "results.json").exists():
                say(console, f"For a report of the finished runs: contentrope report {out}")
            raise
        show_results(console, results, out)
        say(console, f"written: {out / 'results.json'}")

    def asked(self) -> list[str]:
        """The options that decide the numbers, as they would be typed; the results tell the seeds and variants."""
        words = ["--preset", self.preset]
        for name, value in self._given(*self._options()).items():
            values = value if isinstance(value, tuple) else (value,)
            words += [f"--{name.replace('_', '-')}", *map(str, values)]
        return words

    def settings(self) -> tuple[Any, str]:
        """The settings asked for, and the name they are recorded under."""
        if self.preset not in self.PRESETS:
            raise InputError(f"unknown preset {self.preset!r}; choose {', '.join(self.PRESETS)}")
        preset = self.PRESETS[self.preset]
        config = replace(preset, **self._changes(preset))
        same = replace(config, seeds=preset.seeds, variants=preset.variants) == preset
        return config, self.preset if same else "custom"

    def _options(self) -> tuple[str, ...]:
        """Those that decide the numbers."""
        return self.OWN

    def _changes(self, preset: Any) -> dict[str, Any]:
        return self._given("seeds", "variants", *self.OWN)

    def _given(self, *names: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


@dataclass(frozen=True)
class TrainingReproduction(Reproduction):
    """An experiment that trains every variant to the end before it measures anything."""

    steps: Integer = None
    """Updates per run; the warm-up keeps its share of them."""
    batch_size: Integer = None
    """Examples per update."""
    learning_rate: Number = None
    """Peak of the learning rate."""
    schedule: Course = None
    """What follows the warm-up: half a cosine down to zero, or the peak to the end."""
    weight_decay: Number = None
    """Decoupled weight decay."""
    precision: Choice = None
    """How a GPU multiplies matrices."""

    def _options(self) -> tuple[str, ...]:
        return (*self.OWN, *TRAINING)

    def _changes(self, preset: Any) -> dict[str, Any]:
        return super()._changes(preset) | {"training": self._training(preset.training)}

    def _training(self, preset: TrainConfig) -> TrainConfig:
        changes = self._given(*TRAINING)
        if self.steps is not None:
            changes["warmup"] = preset.warmup * self.steps // preset.steps
        return replace(preset, **changes)


def _claim_report(out: Path) -> None:
    """Refuse a report that could not be written after the work. One of an earlier version has no record, but is the
    same, byte for byte, when it is made again."""
    from contentrope.reports import read_results, write_report
    from contentrope.reports.write import PAGES

    with OutputFolder(out, "report", part=REPORT, patience=REPORT_TIME) as report:
        if (out / suite.RESULTS).exists() and any((out / name).exists() for name in PAGES):
            write_report(read_results(out / suite.RESULTS), out)
        report.claim(*PAGES)
