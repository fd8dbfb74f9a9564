"""What was run and how to run it again: the sentences that all reports share."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from contentrope.reports.blocks import Block, Command, Heading, Paragraph
from contentrope.reports.read import Results, all_runs, seeds_of, setting

CUSTOM = "custom"
"""What a run is called whose settings are no preset's."""


def unfinished(results: Results) -> str | None:
    """How many runs are still to come, if any."""
    asked = {*results["variants"], *(results["config"].get("variants") or ())}
    planned = len(seeds_of(results)) * len(asked)
    done = sum(1 for _ in all_runs(results))
    return f"Unfinished: {done} of {planned} runs are in. Numbers may change." if done < planned else None


def repeat(results: Results) -> list[Block]:
    """The section that says how to run it again."""
    settings = "Every setting, seed and unrounded number is in results.json."
    if results.get("preset") == CUSTOM:
        settings = "The settings were changed by hand: give those under config in results.json as options. " + settings
    rebuild = "This report alone is rebuilt by:"
    return [
        Heading("Repeat it"),
        Command(command(results)),
        Paragraph(f"{settings} {rebuild}"),
        Command(rebuild_command(results)),
    ]


def command(results: Results) -> str:
    """The command that repeats the experiment: the options it was given, or what its preset tells."""
    asked = results.get("asked")
    parts = ["contentrope", "reproduce", str(results["experiment"])]
    if isinstance(asked, list):
        variants = results["config"].get("variants") or ()
        parts += [*map(str, asked), *(["--variants", *map(str, variants)] if variants else [])]
    elif _preset(results) != CUSTOM:
        parts += ["--preset", _preset(results)]
    if seeds := seeds_of(results):
        parts += ["--seeds", str(len(seeds))]
    return _one_line([*parts, "--out", _folder(results)])


def rebuild_command(results: Results) -> str:
    """The command that makes the report again from its result file."""
    return _one_line(["python", "-m", "contentrope.reports", f"{_folder(results)}/results.json"])


def _preset(results: Results) -> str:
    return str(results.get("preset") or CUSTOM)


def _folder(results: Results) -> str:
    """A folder to write to: not the one this report lies in, which another reader does not have."""
    return f"runs/{results['experiment']}-{_preset(results)}"


def _one_line(parts: list[str]) -> str:
    return " ".join(shlex.join(parts).split())


def training(results: Results, examples: str, unit: str) -> str:
    """Preset, steps, optimizer, precision and seeds of a training on ``examples``; a step takes some ``unit``."""
    batch = setting(results, "batch_size", "batch")
    steps, rate = setting(results, "steps"), setting(results, "learning_rate")
    details = [
        steps and f"{shown(steps)} steps",
        batch and f"{shown(batch)} {unit} a step",
        rate and f"learning rate {shown(rate)}",
        _named(results, "schedule", "schedule"),
        _named(results, "weight decay", "weight_decay"),
        _named(results, "precision", "precision", "dtype"),
        _seeds(seeds_of(results)),
    ]
    known = ", ".join(filter(None, details))
    return f"Preset {_preset(results)}. Trained on {examples}{f': {known}' if known else ''}."


def _seeds(seeds: list[int]) -> str | None:
    if not seeds:
        return None
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _named(results: Results, title: str, *names: str) -> str | None:
    value = setting(results, *names)
    return None if value is None else f"{title} {shown(value)}"


def shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def model(results: Results) -> str | None:
    counts = sorted({run["parameters"] for run in all_runs(results) if run.get("parameters")})
    details = [
        _named(results, "width", "dim", "width"),
        _named(results, "layers", "layers"),
        _named(results, "heads", "heads"),
        _named(results, "dropout", "dropout"),
        _named(results, "attention dropout", "attention_dropout"),
        _named(results, "first weights", "initialisation"),
        " to ".join(f"{count:,}" for count in dict.fromkeys((*counts[:1], *counts[-1:]))) + " parameters"
        if counts
        else None,
    ]
    return f"Model: {', '.join(filter(None, details))}." if any(details) else None


def machine(results: Results) -> str | None:
    """Everything the runs were made on: a resumed experiment may have seen two machines."""
    places = [results.get("environment"), *(run.get("environment") for run in all_runs(results))]
    known = [place for place in places if isinstance(place, Mapping)]
    parts = [
        _all("", [_device(place) for place in known]),
        *(_all(name, [place.get(key) for place in known]) for key, name in _VERSIONS.items()),
        _all("commit", [_commit(place.get("git")) for place in known]),
        _all("", [str(place.get("time") or "")[:10] for place in known][:1]),
    ]
    return f"Made with: {', '.join(filter(None, parts))}." if any(parts) else None


_VERSIONS = {"contentrope": "contentrope", "torch": "torch", "python": "Python"}


def _all(name: str, values: list[Any]) -> str:
    different = dict.fromkeys(str(value) for value in values if value)
    return f"{name} {' and '.join(different)}".strip() if different else ""


def _device(place: Results) -> str | None:
    device = place.get("device")
    if device == "cpu" and place.get("cpu"):
        threads = place.get("threads")
        return f"{place['cpu']} (CPU{f', {threads} thread' + 's' * (threads != 1) if threads else ''})"
    return device


def _commit(git: Any) -> str | None:
    if not git:
        return None
    commit, changed = str(git).removesuffix("-dirty"), str(git).endswith("-dirty")
    return commit[:12] + (" with local changes" if changed else "")
