"""The checks that result files of all experiments share."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from contentrope.errors import InputError

_RUN_NUMBERS = ("final_loss", "training_seconds", "steps_per_second", "evaluation_seconds", "parameters")
MOST_DIGITS, MOST_SEEDS = 12, 10**6
"""Of a length or a count, and of an experiment: what is beyond would not fit into a picture, or into memory."""


def check_settings(config: Mapping[str, Any]) -> None:
    """The seeds and variants asked for."""
    seeds = config.get("seeds")
    if not (seeds is None or (is_count(seeds) and seeds < MOST_SEEDS) or is_list_of(int, seeds)):
        raise InputError(f"config.seeds is {seeds!r}, neither a list of seeds nor their number")
    check_list(config, "variants", str)


def check_list(config: Mapping[str, Any], name: str, kind: type) -> None:
    if not (config.get(name) is None or is_list_of(kind, config[name])):
        raise InputError(f"config.{name} is {config[name]!r}, not a list of {kind.__name__}")


def check_costs(where: str, run: Mapping[str, Any]) -> None:
    """What a run took, and the model it made."""
    for name in _RUN_NUMBERS:
        if not (run.get(name) is None or is_number(run[name])):
            raise InputError(f"{name} in {where} is {run[name]!r}, not a number")
    if run.get("model") is not None:
        require_object(f"model in {where}", run["model"])
        require_object(f"rotary of the model in {where}", run["model"].get("rotary") or {})


def check_perplexities(where: str, values: Any) -> None:
    require_object(f"perplexity in {where}", values)
    for place, value in values.items():
        if not is_perplexity(value):
            raise InputError(f"perplexity in {where} at {place} is {value!r}, not a positive number or null")


def require_object(what: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise InputError(f"{what} should be a JSON object, got {'nothing' if value is None else repr(value)[:40]}")


def is_perplexity(value: Any) -> bool:
    """A positive number, or null for one beyond all numbers."""
    return value is None or (is_number(value) and value > 0)


def is_positive_count(text: str) -> bool:
    """A key that is a whole number from 1 on."""
    return text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS and int(text) > 0


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_list_of(kind: type, values: Any) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(value, kind) for value in values)
