"""Is it a result file? Whatever a report reads is checked here, so that a foreign file is refused by name and place."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from contentrope.errors import InputError

_RUN_NUMBERS = ("final_loss", "training_seconds", "steps_per_second", "evaluation_seconds", "parameters")
MOST_DIGITS, MOST_SEEDS = 12, 10**6
"""Of a length, and of an experiment: what is beyond would not fit into a picture, or into memory."""


def check_results(results: Any) -> None:
    """Refuse what a report cannot be made of, and name the place."""
    _require_object("the file", results)
    if not isinstance(results.get("experiment"), str):
        raise InputError("it names no experiment")
    for part in ("config", "corpus", "variants"):
        _require_object(part, results.get(part))
    _check_config(results["config"])
    for variant, entry in results["variants"].items():
        _require_object(f"variant {variant}", entry)
        _require_object(f"runs of {variant}", entry.get("runs"))
        for seed, run in entry["runs"].items():
            _check_run(f"run {seed} of {variant}", run)


def _check_config(config: Mapping[str, Any]) -> None:
    seeds = config.get("seeds")
    if not (seeds is None or (_is_count(seeds) and seeds < MOST_SEEDS) or _is_list_of(int, seeds)):
        raise InputError(f"config.seeds is {seeds!r}, neither a list of seeds nor their number")
    for name, kind in (("once", int), ("variants", str)):
        if not (config.get(name) is None or _is_list_of(kind, config[name])):
            raise InputError(f"config.{name} is {config[name]!r}, not a list of {kind.__name__}")


def _check_run(where: str, run: Any) -> None:
    _require_object(where, run)
    _check_perplexities(where, run.get("perplexity"))
    for length in run["perplexity"]:
        if not (length.isascii() and length.isdigit() and len(length) <= MOST_DIGITS and int(length)):
            raise InputError(f"perplexity in {where} has the length {length!r}, which is not a number from 1 on")
    for name in _RUN_NUMBERS:
        if not (run.get(name) is None or _is_number(run[name])):
            raise InputError(f"{name} in {where} is {run[name]!r}, not a number")
    if run.get("model") is not None:
        _require_object(f"model in {where}", run["model"])
        _require_object(f"rotary of the model in {where}", run["model"].get("rotary") or {})
    if run.get("by_position") is not None:
        _check_positions(f"by_position in {where}", run["by_position"])
    if run.get("distant") is not None:
        _check_distant(f"distant in {where}", run["distant"])


def _check_positions(where: str, positions: Any) -> None:
    _require_object(where, positions)
    edges, values = positions.get("edges"), positions.get("perplexity")
    rising = _is_list_of(int, edges) and edges and edges[0] >= 0 and all(a < b for a, b in pairwise(edges))
    if not rising or not isinstance(values, list) or len(edges) != len(values) + 1 or not values:
        raise InputError(f"{where} needs rising edges, and one perplexity between every two of them")
    _check_perplexities(where, dict(enumerate(values)))


def _check_distant(where: str, distant: Any) -> None:
    _require_object(where, distant)
    _check_perplexities(where, distant.get("perplexity"))
    missing = [name for name in ("length", "near", "scored") if not _is_count(distant.get(name))]
    if missing or "as written" not in distant["perplexity"]:
        raise InputError(f"{where} needs length, near, scored, and the perplexity of the text as written")


def _check_perplexities(where: str, values: Any) -> None:
    _require_object(f"perplexity in {where}", values)
    for place, value in values.items():
        if value is not None and not (_is_number(value) and value > 0):
            raise InputError(f"perplexity in {where} at {place} is {value!r}, not a positive number or null")


def _require_object(what: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise InputError(f"{what} should be a JSON object, got {'nothing' if value is None else repr(value)[:40]}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_list_of(kind: type, values: Any) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(value, kind) for value in values)
