"""The command of every experiment: its options are the settings of a preset, its run can be stopped and continued."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, make_dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, cast, get_args, get_origin, get_type_hints

from docstring_parser import parse_from_object
from tyro.conf import arg

from contentrope.cli import Command
from contentrope.cli.options import (
    Device,
    chosen_device,
    is_first_process,
    one,
    require_folder,
    require_no_file,
    several,
)
from contentrope.cli.parsing import parse_words
from contentrope.cli.progress import progress_display
from contentrope.cli.tables import SavingConsole, say
from contentrope.errors import InputError, quoted
from contentrope.training import TrainConfig, local_device
from experiments import report, runner
from experiments.experiment import ASKED_FOR, Experiment
from experiments.results import EXPERIMENTS, OLD_NAMES, ResultError

PROGRAM = "python -m experiments"
TITLES = {
    "growth": "Train on short windows of text, then read longer and longer ones: which variant keeps its perplexity?",
    "facts": "Train on facts and sentences about them, then ask for names among other facts: which is the answer from?",
    "retrofit": "Give a finished model content addresses with a tenth of its training, then read longer windows.",
    "timing": "Time whole training steps: how much longer do they take with addresses than with plain RoPE?",
    "open_model": "Convert SmolLM2-135M in several ways with the same short training, then read far beyond its limit.",
    "reader": "Train SmolLM2-135M to answer from documents that are memory units: is it as good as reading one text?",
}
MORE = {
    "open_model": "First python -m experiments.open_model.weights. --variants, --seeds, --measures ask for a part.",
    "reader": "First python -m experiments.open_model.weights. --variants, --seeds, --measures ask for a part.",
    "retrofit": "A checkpoint of your own: --model DIR --text my-texts/ --length 1024 --steps 200",
    "timing": "Use the device for nothing else meanwhile.",
}
DESCRIPTION = """{title} {more}

- DIR/results.json: all numbers and settings; DIR/report.html and DIR/report.md: tables and figures
- DIR/runs: the trained models, if they are kept

The same command again continues where it was stopped; variants and seeds can be added later. A preset with any other
change is recorded under the name "custom".

Example: {program} {name} --preset paper --device cuda"""
MOST_SEEDS = 10_000
PREFIXES = {"pretraining": "original_"}
"""Of settings that another part has too; all others have their own name."""
OF_THE_ORIGINAL_TOO = ("batch_size", "schedule", "weight_decay", "precision")
"""Settings of the training that count for the original's too, unless that is given its own."""
TEXTS = ("corpus", "text")
"""Settings that name what is read: another text is taken whole."""


@dataclass(frozen=True)
class Places:
    """Options that decide no numbers, of every experiment."""

    out: Annotated[Path | None, one(Path, "DIR"), arg(help_behavior_hint="(default: runs/EXPERIMENT-PRESET)")] = None
    """Folder for everything that is written."""
    device: Device = None
    """Where to compute."""
    jobs: int = 1
    """Variants computed at the same time, each in a process of its own."""


@dataclass(frozen=True)
class Run:
    """An experiment with its settings, and where it writes."""

    experiment: Experiment
    preset: str
    asked: list[str]
    """The options that decide the numbers, as they would be typed; the results tell the seeds and variants."""
    out: Path
    device: str | None
    jobs: int

    def run(self) -> None:
        require_folder(self.out)
        device, console, file = chosen_device(self.device), SavingConsole(), self.out / runner.RESULTS
        how: dict[str, Any] = {"preset": self.preset, "jobs": self.jobs, "asked": self.asked}
        if runner.is_launched() and self.experiment.trains_in_processes:
            self._train(device)
            return
        try:
            report.claim(self.out)
            with progress_display(console) as progress:
                runner.run(self.experiment, self.out, progress, device, **how)
            report.show(file)
        except ResultError as error:
            raise InputError(str(error)) from error
        except KeyboardInterrupt:
            if file.exists():
                again = shlex.join(["python", "-m", "experiments.report", str(self.out)])
                say(console, f"For a report of the finished runs: {again}")
            raise
        say(console, f"written: {file}")

    def _train(self, device: str) -> None:
        console = SavingConsole(quiet=not is_first_process())
        with progress_display(console) as progress:
            runner.train_in_processes(self.experiment, self.out, progress, str(local_device(device)))
        say(console, "trained; the same command in one process, without accelerate launch, measures")


def parse(words: Sequence[str]) -> Command:
    """The experiment that the words ask for; wrong ones are an :class:`InputError` that says what is allowed."""
    name, *rest = words or [""]
    if name in ("-h", "--help"):
        print(f"usage: {PROGRAM} EXPERIMENT [--preset quick] [options]\n")
        print("\n".join(f"{experiment:12}{title}" for experiment, title in TITLES.items()))
        raise SystemExit(0)
    if name not in EXPERIMENTS:
        hint = f"; {name} is now called {OLD_NAMES[name]}" if name in OLD_NAMES else ""
        raise InputError(f"name an experiment, {', '.join(EXPERIMENTS)}; got {quoted(name)}{hint}")
    presets = presets_of(name)
    preset = _preset_asked(rest)
    if preset not in presets:
        raise InputError(f"unknown preset {quoted(preset)}; choose {', '.join(presets)}")
    settings = list(settings_of(presets[preset]))
    description = DESCRIPTION.format(title=TITLES[name], more=MORE.get(name, ""), program=PROGRAM, name=name)
    options = parse_words(_options(settings, presets), rest, f"{PROGRAM} {name}", description)
    given = {setting: value for setting in settings if (value := getattr(options, setting.name)) is not None}
    config, recorded = configured(presets[preset], preset, given)
    kind = name.title().replace("_", "")
    experiment = getattr(import_module(f"experiments.{name}.run"), kind)(config)
    out = options.out or Path(f"runs/{name}-{recorded}")
    return Run(experiment, recorded, asked(preset, given), out, options.device, options.jobs)


def presets_of(name: str) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], import_module(f"experiments.{name}.config").PRESETS)


def _preset_asked(words: Sequence[str]) -> str:
    """Read first: the other options have its settings as defaults."""
    reader = ArgumentParser(add_help=False, allow_abbrev=False)
    reader.add_argument("--preset", nargs="?", default="quick", const="quick")
    return str(reader.parse_known_args(words)[0].preset)


# --- settings as options -------------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """A setting of a configuration, or of a part of it."""

    part: str
    field: str
    hint: Any
    value: Any
    """What the preset has."""
    text: str

    @property
    def name(self) -> str:
        return PREFIXES.get(self.part, "") + self.field


def settings_of(config: Any, part: str = "") -> Iterator[Setting]:
    """All that a configuration and its parts are made of, but for the seeds that its runs get anyway."""
    for name, (hint, text) in _documented(config.__class__).items():
        value = getattr(config, name)
        if is_dataclass(value):
            yield from settings_of(value, name)
        elif not (isinstance(config, TrainConfig) and name == "seed"):
            yield Setting(part, name, hint, value, text)


@cache
def _documented(kind: type) -> dict[str, tuple[Any, str]]:
    """The type of each field of a dataclass, and what its docstring says."""
    hints = get_type_hints(kind)
    texts = {found.arg_name: " ".join((found.description or "").split()) for found in parse_from_object(kind).params}
    return {field.name: (hints[field.name], texts.get(field.name, "")) for field in fields(kind)}


def _options(settings: Sequence[Setting], presets: Mapping[str, Any]) -> type:
    preset = Annotated[str, one(str, "", tuple(presets)), arg(help="Settings to begin with.")]
    found = [(setting.name, _option(setting), None) for setting in settings]
    return make_dataclass("Options", [("preset", preset, "quick"), *found], bases=(Places,), frozen=True)


def _option(setting: Setting) -> Any:
    """How a value is read, and what the help says of it; None where it is not given."""
    inner = get_args(setting.hint)
    hint = inner[0] if NoneType in inner else setting.hint
    is_list = get_origin(hint) is tuple
    kind = get_args(hint)[0] if is_list else hint
    choices = get_args(kind) if get_origin(kind) is Literal else ("true", "false") if kind is bool else ()
    read = "true".__eq__ if kind is bool else kind if kind in (int, float) else str
    metavar = f"{{{','.join(choices)}}}" if choices else {int: "INT", float: "FLOAT"}.get(kind, "TEXT")
    spec = several(read, metavar) if is_list else one(read, metavar, choices)
    words = shlex.join(_words(setting.value)) if setting.value not in (None, ()) else "none"
    return Annotated[Any, spec, arg(help=setting.text, help_behavior_hint=f"(default: {words})")]


def _words(value: Any) -> list[str]:
    values = value if isinstance(value, tuple) else (value,)
    return [str(each).lower() if isinstance(each, bool) else str(each) for each in values]


# --- changes to a preset -------------------------------------------------------------------------------------------


def configured(preset: Any, name: str, given: Mapping[Setting, Any]) -> tuple[Any, str]:
    """A preset with changes, and the name it is recorded under."""
    by_part: dict[str, dict[str, Any]] = {}
    for setting, value in given.items():
        by_part.setdefault(setting.part, {})[setting.field] = value
    changes = by_part.pop("", {})
    if changes.get("seeds", 0) > MOST_SEEDS:
        raise InputError(f"seeds must be at most {MOST_SEEDS}, got {changes['seeds']}")
    if any(changes.get(text, getattr(preset, text, None)) != getattr(preset, text, None) for text in TEXTS):
        changes = {"characters": None, **changes}
    shared = {field: value for field, value in by_part.get("training", {}).items() if field in OF_THE_ORIGINAL_TOO}
    if hasattr(preset, "pretraining"):
        by_part["pretraining"] = shared | by_part.get("pretraining", {})
    parts = {part: _changed(getattr(preset, part), of_it) for part, of_it in by_part.items()}
    if "model" in changes:
        require_no_file(changes["model"])
    config = replace(preset, **changes, **parts)
    same = replace(config, **{part: getattr(preset, part) for part in ASKED_FOR if hasattr(preset, part)}) == preset
    return config, name if same else "custom"


def _changed(part: Any, changes: Mapping[str, Any]) -> Any:
    """The warm-up keeps its share of other steps."""
    if isinstance(part, TrainConfig) and "steps" in changes:
        changes = {"warmup": part.warmup * changes["steps"] // part.steps, **changes}
    return replace(part, **changes)


def asked(preset: str, given: Mapping[Setting, Any]) -> list[str]:
    words = ["--preset", preset]
    for setting, value in given.items():
        if setting.name not in ASKED_FOR:
            option, values = f"--{setting.name.replace('_', '-')}", _words(value)
            dashed = len(values) == 1 and values[0].startswith("-")  # it would be taken for an option
            words += [f"{option}={values[0]}"] if dashed else [option, *values]
    return words
