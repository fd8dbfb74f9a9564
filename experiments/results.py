"""What a result file says, whatever the experiment and its age. No torch: nothing of the library is imported."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments.tables import Measured, Table, by_column, measured, number

Results = Mapping[str, Any]
EXPERIMENTS = ("growth", "facts", "retrofit", "timing", "open_model", "reader")
OLD_NAMES = {"shakespeare": "growth", "context-growth": "growth"}
"""Of experiments, in files of before."""
COMMA_BETWEEN_OPTIONS = re.compile(r",(?![^\[]*\])")
"""In a variant's name; a list has commas of its own."""
GONE = {"anchors", "noise"}
"""Options of 0.1: variants with them are shown, but cannot be run any more."""
SINCE = {"config": {"initialisation": "small"}, "training": {"schedule": "cosine"}}
"""Settings of growth that files of 0.1 do not name yet: what held then."""


class ResultError(ValueError):
    """A result cannot be shown; says which and why."""


def read(path: Path) -> Results:
    """The result file (or the results.json in a folder) of an experiment, under its name of today."""
    path = path / "results.json" if path.is_dir() else path
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise ResultError(f"{path} is no ordinary file: give the result file of an experiment, or its folder")
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultError(f"{path} cannot be read ({error.strerror}): give the result file of an experiment") from error
    except (ValueError, RecursionError) as error:
        raise ResultError(f"{path} is cut off or not JSON ({error}): restore a whole copy") from error
    named = results.get("experiment") if isinstance(results, dict) else None
    name = OLD_NAMES.get(named, named) if isinstance(named, str) else None
    if name not in EXPERIMENTS:
        wanted = ", ".join(EXPERIMENTS)
        raise ResultError(f"{path} is no result of an experiment: 'experiment' is {named!r}, not one of {wanted}")
    return _with_later({**results, "experiment": name})


def _with_later(results: Results) -> Results:
    """With the settings of :data:`SINCE`, where the file has settings at all."""
    config = results.get("config") if results["experiment"] == "growth" else None
    if not isinstance(config, dict) or not isinstance(config.get("training"), dict):
        return results
    training = SINCE["training"] | config["training"]
    return {**results, "config": SINCE["config"] | config | {"training": training}}


# --- variants and runs ---------------------------------------------------------------------------------------------


def variants(results: Results) -> list[str]:
    """Those with a finished run, in the order they were asked for, not that of finishing."""
    asked = results["config"].get("variants") or ()
    return [name for name in dict.fromkeys([*asked, *results["variants"]]) if runs(results, name)]


def runs(results: Results, variant: str) -> list[Results]:
    """The finished runs of a variant, one a seed."""
    return list(results["variants"].get(variant, {"runs": {}})["runs"].values())


def all_runs(results: Results) -> Iterator[Results]:
    for variant in variants(results):
        yield from runs(results, variant)


def seeds(results: Results) -> list[int]:
    """The seeds asked for: a list of them, or how many from zero on."""
    asked = results["config"].get("seeds") or ()
    return list(range(asked)) if isinstance(asked, int) else list(asked)


def seeds_of(results: Results, variant: str) -> list[int]:
    """Those of one variant: where some variants are the main ones, all others have one seed."""
    main = results["config"].get("main")
    return seeds(results)[: None if main is None or variant in main else 1]


def missing(results: Results) -> list[str]:
    """The variants with seeds that were asked for and are not there yet."""
    found = []
    for variant in results["config"].get("variants") or ():
        done = results["variants"].get(variant, {"runs": {}})["runs"]
        left = [str(seed) for seed in seeds_of(results, variant) if str(seed) not in done]
        found += [f"{variant}, seed {', '.join(left)}"] if left else []
    return found


def is_gone(variant: str) -> bool:
    """Whether this version has the variant no more."""
    return not GONE.isdisjoint(scheme_and_options(variant)[1])


def scheme_and_options(variant: str) -> tuple[str, dict[str, str]]:
    """Split a variant's name.

    >>> scheme_and_options("content:anchors=[0,1],noise=1")
    ('content', {'anchors': '[0,1]', 'noise': '1'})
    """
    scheme, _, rest = variant.partition(":")
    options = (item.partition("=") for item in COMMA_BETWEEN_OPTIONS.split(rest) if item)
    return scheme, {name: value for name, _, value in options}


# --- numbers -------------------------------------------------------------------------------------------------------


def values(results: Results, variant: str, *path: str) -> list[Any]:
    """What stands at this path in every run that has it."""
    return [found for run in runs(results, variant) if (found := _at(run, path)) is not ...]


def numbers(results: Results, variant: str, *path: str) -> Measured | None:
    """The same, as mean and spread over seeds; None where no run has it."""
    found = values(results, variant, *path)
    return measured(found, len(runs(results, variant))) if found else None


def keys(results: Results, *path: str) -> list[str]:
    """All keys that some run has at this path, numbers by their size."""
    found = dict.fromkeys(key for run in all_runs(results) if (part := _at(run, path)) is not ... for key in part or ())
    return sorted(found, key=float) if all(map(is_number, found)) else list(found)


def _at(run: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        if run is None or key not in run:
            return ...
        run = run[key]
    return run


def is_number(text: str) -> bool:
    """Whether a key or an option is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


COSTS = {
    "final loss": "final_loss",
    "training, s": "training_seconds",
    "steps per second": "steps_per_second",
    "evaluation, s": "evaluation_seconds",
}


def cost_table(results: Results) -> Table:
    """What training each variant took, as a mean over its seeds."""
    rows = []
    for name in variants(results):
        size = numbers(results, name, "parameters")
        costs = {head: numbers(results, name, key) for head, key in COSTS.items()}
        texts = {head: value.text() if value else "" for head, value in costs.items()}
        rows.append({"": name, "parameters": number(size.mean, 0) if size else "", **texts})
    return by_column(rows, "Training", "What each variant took.")
