"""What was run, in one paragraph, and how to run it again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from contentrope.reports.read import Results, all_runs, lengths_of, seeds_of, setting, training_length

CUSTOM = "custom"
"""What a run is called whose settings are no preset's."""


def title(results: Results) -> str:
    return f"Context growth on {results['corpus'].get('name', 'an unnamed text')}"


def what_was_run(results: Results) -> str:
    """Sizes, steps, batch, precision, seeds, text, machine, versions and commit; what is unknown is left out."""
    sentences = (_training(results), _model(results), _reading(results), _text(results), _machine(results))
    return " ".join(filter(None, sentences))


def unfinished(results: Results) -> str | None:
    """How many runs are still to come, if any."""
    asked = {*results["variants"], *(results["config"].get("variants") or ())}
    planned = len(seeds_of(results)) * len(asked)
    done = sum(1 for _ in all_runs(results))
    return f"Unfinished: {done} of {planned} runs are in. Numbers may change." if done < planned else None


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


def _training(results: Results) -> str:
    length, batch = training_length(results), setting(results, "batch_size", "batch")
    windows = f"windows of {length:,} characters" if length else "windows of text"
    steps, rate = setting(results, "steps"), setting(results, "learning_rate")
    details = [
        steps and f"{_shown(steps)} steps",
        batch and f"{_shown(batch)} windows a step",
        rate and f"learning rate {_shown(rate)}",
        _named(results, "precision", "precision", "dtype"),
        _seeds(seeds_of(results)),
    ]
    known = ", ".join(filter(None, details))
    return f"Preset {_preset(results)}. Trained on {windows}{f': {known}' if known else ''}."


def _seeds(seeds: list[int]) -> str | None:
    if not seeds:
        return None
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _named(results: Results, title: str, *names: str) -> str | None:
    value = setting(results, *names)
    return None if value is None else f"{title} {_shown(value)}"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _model(results: Results) -> str | None:
    counts = sorted({run["parameters"] for run in all_runs(results) if run.get("parameters")})
    details = [
        _named(results, "width", "dim", "width"),
        _named(results, "layers", "layers"),
        _named(results, "heads", "heads"),
        _named(results, "dropout", "dropout"),
        _named(results, "attention dropout", "attention_dropout"),
        " to ".join(f"{count:,}" for count in dict.fromkeys((*counts[:1], *counts[-1:]))) + " parameters"
        if counts
        else None,
    ]
    return f"Model: {', '.join(filter(None, details))}." if any(details) else None


def _reading(results: Results) -> str | None:
    lengths = lengths_of(results)
    once = [length for length in setting(results, "once") or () if length in lengths]
    read = f"Read at {', '.join(f'{n:,}' for n in lengths)} characters" if lengths else None
    rest = f" ({', '.join(f'{n:,}' for n in once)} with the first seed alone)" if once else ""
    unseen = " Scored on the end of the training part, to choose settings; the held-out text stays unseen."
    return read and f"{read}{rest}.{unseen if setting(results, 'search') else ''}"


def _text(results: Results) -> str:
    corpus = results["corpus"]
    sizes = {"characters": "characters", "symbols": "symbols", "training": "to train on", "held_out": "held out"}
    details = [f"{corpus[key]:,} {words}" for key, words in sizes.items() if isinstance(corpus.get(key), int)]
    mark = [f"SHA-256 {str(corpus['sha256'])[:12]}…"] if corpus.get("sha256") else []
    return f"Text: {', '.join([str(corpus.get('name', 'unnamed')), *details, *mark])}."


def _machine(results: Results) -> str | None:
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
