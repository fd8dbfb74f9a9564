"""Is it a result of the timing experiment?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contentrope.errors import InputError
from contentrope.reports.checks import check_list, is_count, is_number, require_object
from contentrope.reports.timing.read import ACCELERATIONS, BASELINE

MOST = 1e12
"""Of any time, percentage or size: what is beyond is no measurement."""
_COUNTS = ("timed_steps", "warmup_steps", "unit_length", "vocabulary")
_OVERHEADS = ("overhead_percent", "overhead_of_means_percent")


def check_config(config: Mapping[str, Any]) -> None:
    for name in ("schemes", "accelerations"):
        check_list(config, name, str)
    for name in _COUNTS:
        if not (config.get(name) is None or is_count(config[name])):
            raise InputError(f"config.{name} is {config[name]!r}, not a whole number")


def check_run(where: str, run: Mapping[str, Any]) -> None:
    for name in ("batch", "length"):
        if not (run.get(name) is None or (is_count(run[name]) and 0 < run[name] <= MOST)):
            raise InputError(f"{name} in {where} is {run[name]!r}, not a whole number from 1 on")
    if run.get("environment") is not None:
        require_object(f"environment in {where}", run["environment"])
    require_object(f"timings in {where}", run.get("timings"))
    for acceleration, timings in run["timings"].items():
        if acceleration not in ACCELERATIONS:
            raise InputError(f"timings in {where} has {acceleration!r}, which is none of {', '.join(ACCELERATIONS)}")
        require_object(f"{acceleration} in {where}", timings)
        if BASELINE not in timings:
            raise InputError(f"{acceleration} in {where} has no {BASELINE} to compare with")
        for scheme, timing in timings.items():
            _check_timing(f"{scheme}, {acceleration} in {where}", timing)


def _check_timing(where: str, timing: Any) -> None:
    require_object(where, timing)
    if timing.get("failed") is not None:
        _check_failure(where, timing)
        return
    steps = timing.get("steps_ms")
    if not (isinstance(steps, list) and steps and all(map(_is_time, steps))):
        raise InputError(f"steps_ms of {where} should be a list of one or more positive numbers")
    for name in ("median_ms", "mean_ms"):
        if not _is_time(timing.get(name)):
            raise InputError(f"{name} of {where} is {timing.get(name)!r}, not a positive number")
    for name in ("peak_bytes", "parameters"):
        if not (timing.get(name) is None or (is_count(timing[name]) and 0 < timing[name] <= MOST * 1e3)):
            raise InputError(f"{name} of {where} is {timing[name]!r}, neither a whole number from 1 on nor null")
    for name in _OVERHEADS:
        if not (timing.get(name) is None or (is_number(timing[name]) and -100 < timing[name] <= MOST)):
            raise InputError(f"{name} of {where} is {timing[name]!r}, neither a number above -100 nor null")


def _check_failure(where: str, timing: Mapping[str, Any]) -> None:
    if not isinstance(timing["failed"], str) or not timing["failed"]:
        raise InputError(f"failed of {where} is {timing['failed']!r}, not the reason in words")
    numbers = [name for name in ("steps_ms", "median_ms", "mean_ms", *_OVERHEADS) if timing.get(name) is not None]
    if numbers:
        raise InputError(f"{where} failed, and has {', '.join(numbers)} all the same")


def _is_time(value: Any) -> bool:
    return is_number(value) and 0 < value <= MOST
