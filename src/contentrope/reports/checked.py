"""Is it a result file? Whatever a report reads is checked, so that a foreign file is refused by name and place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from contentrope.errors import InputError
from contentrope.reports.checks import check_settings, require_object
from contentrope.reports.known import KNOWN, experiment_of
from contentrope.results import read_json


def read_results(path: str | Path) -> dict[str, Any]:
    """Read the result file of an experiment; a damaged or foreign one is refused."""
    results = read_json(path)
    try:
        check_results(results)
    except InputError as error:
        raise InputError(f"{path} is not a result file of {_kind(results)}: {error}") from error
    return results


def check_results(results: Any) -> None:
    """Refuse what a report cannot be made of, and name the place."""
    require_object("the file", results)
    if not isinstance(results.get("experiment"), str):
        raise InputError("it names no experiment")
    for part in ("config", "corpus", "variants"):
        require_object(part, results.get(part))
    experiment = experiment_of(results)
    check_settings(results["config"])
    experiment.check_config(results["config"])
    for variant, entry in results["variants"].items():
        require_object(f"variant {variant}", entry)
        require_object(f"runs of {variant}", entry.get("runs"))
        for seed, run in entry["runs"].items():
            require_object(f"run {seed} of {variant}", run)
            experiment.check_run(f"run {seed} of {variant}", run)


def _kind(results: Any) -> str:
    """What the file claims to be, or all that it could be."""
    try:
        return experiment_of(results).KIND
    except (InputError, KeyError, TypeError):
        return " or ".join(known.KIND for known in KNOWN.values())
