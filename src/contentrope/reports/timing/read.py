"""Times, overheads and memory, as a result file has them: by row, acceleration and scheme."""

from __future__ import annotations

from typing import Any, NamedTuple

from contentrope.reports.measured import Measured, mean_and_spread
from contentrope.reports.read import Results, all_runs, runs_of, variants_of

BASELINE = "rope"
ACCELERATIONS = ("none", "compile", "graphs")
OUT_OF_MEMORY = "out of memory"


class Failure(NamedTuple):
    row: str
    acceleration: str
    scheme: str
    reason: str


def accelerations_of(results: Results) -> list[str]:
    """Those that some run has, from the plainest on."""
    found = {acceleration for run in all_runs(results) for acceleration in run["timings"]}
    return [acceleration for acceleration in ACCELERATIONS if acceleration in found]


def schemes_of(results: Results) -> list[str]:
    """What is compared with the baseline, in the order asked for."""
    timings = [timing for run in all_runs(results) for timing in run["timings"].values()]
    asked = results["config"].get("schemes") or ()
    found = dict.fromkeys(scheme for timing in timings for scheme in timing if scheme != BASELINE)
    return list(dict.fromkeys([*(scheme for scheme in asked if scheme in found), *found]))


def values(results: Results, row: str, acceleration: str, scheme: str, name: str) -> list[Any]:
    """A number of every repetition that has it."""
    timings = [run["timings"].get(acceleration, {}).get(scheme, {}) for run in runs_of(results, row)]
    return [timing[name] for timing in timings if timing.get(name) is not None]


def measured(results: Results, row: str, acceleration: str, scheme: str, name: str) -> Measured | None:
    """The same over the repetitions."""
    found = values(results, row, acceleration, scheme, name)
    return mean_and_spread(found) if found else None


def step_time(results: Results, row: str, acceleration: str, scheme: str = BASELINE) -> Measured | None:
    """Milliseconds of the median step."""
    return measured(results, row, acceleration, scheme, "median_ms")


def overhead(results: Results, row: str, acceleration: str, scheme: str) -> Measured | None:
    """Percent that the median step takes more than the baseline's."""
    return measured(results, row, acceleration, scheme, "overhead_percent")


def overheads(results: Results, acceleration: str, scheme: str) -> dict[str, Measured]:
    """By row, where there is one."""
    found = {row: overhead(results, row, acceleration, scheme) for row in variants_of(results)}
    return {row: value for row, value in found.items() if value is not None}


def memory_ratio(results: Results, row: str, acceleration: str, scheme: str) -> float | None:
    """Peak memory as a multiple of the baseline's."""
    ours, base = (measured(results, row, acceleration, name, "peak_bytes") for name in (scheme, BASELINE))
    return ours.mean / base.mean if ours and base else None


def failures(results: Results) -> list[Failure]:
    """All that could not be timed, each once."""
    found = [
        Failure(row, acceleration, scheme, timing["failed"])
        for row in variants_of(results)
        for run in runs_of(results, row)
        for acceleration, timings in run["timings"].items()
        for scheme, timing in timings.items()
        if timing.get("failed")
    ]
    return list({failure[:3]: failure for failure in found}.values())


def size_of(row: str) -> str:
    """
    >>> size_of("85M at 8,192")
    '85M'
    """
    return row.partition(" at ")[0]


def length_of(results: Results, row: str) -> int | None:
    """Tokens of a sequence."""
    return next((run["length"] for run in runs_of(results, row) if run.get("length")), None)


def timed_on_gpu(results: Results, row: str) -> bool:
    places = [run.get("environment") or results.get("environment") or {} for run in runs_of(results, row)]
    return any(place.get("device") not in (None, "cpu") for place in places)
