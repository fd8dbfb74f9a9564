"""Findings about acceleration: what compiling, and then capturing, is good for."""

from __future__ import annotations

from contentrope.reports.read import Results, variants_of
from contentrope.reports.timing.read import BASELINE, overheads, schemes_of, step_time
from contentrope.reports.timing.tables import percent
from contentrope.reports.words import listed

STEPS = (("none", "compile", "Compiling"), ("compile", "graphs", "Capturing the compiled step as one CUDA graph"))
"""From, to, and what it is called."""
POINTS = 0.5
"""Percentage points of overhead; less is no change."""
LIKE = 0.02
"""A step time that changes by a smaller share has not changed."""


def accelerated(results: Results) -> list[str]:
    said = []
    for before, after, name in STEPS:
        for scheme in (BASELINE, *schemes_of(results)):
            said += _speed(results, before, after, name, scheme)
        for scheme in schemes_of(results):
            said += _overhead(results, before, after, name, scheme)
    return said


def _speed(results: Results, before: str, after: str, name: str, scheme: str) -> list[str]:
    """Where the step gets faster."""
    times = {
        row: (slow.mean, fast.mean)
        for row in variants_of(results)
        if (slow := step_time(results, row, before, scheme)) and (fast := step_time(results, row, after, scheme))
    }
    ratios = {row: slow / fast for row, (slow, fast) in times.items()}
    groups = {
        f"makes {scheme} faster at": [row for row, ratio in ratios.items() if ratio >= 1 + LIKE],
        f"makes {scheme} slower at": [row for row, ratio in ratios.items() if ratio <= 1 - LIKE],
        f"leaves {scheme} as it is at": [row for row, ratio in ratios.items() if abs(ratio - 1) < LIKE],
    }
    parts = [
        f"{words} {listed([f'{row} (× {ratios[row]:.2f})' for row in rows])}" for words, rows in groups.items() if rows
    ]
    return [f"{name} {', '.join(parts)}."] if parts else []


def _overhead(results: Results, before: str, after: str, name: str, scheme: str) -> list[str]:
    """Where the overhead over RoPE gets smaller."""
    old, new = (overheads(results, acceleration, scheme) for acceleration in (before, after))
    changes = {row: new[row].mean - old[row].mean for row in old if row in new}
    groups = {
        "lowers": [row for row, change in changes.items() if change <= -POINTS],
        "raises": [row for row, change in changes.items() if change >= POINTS],
        "does not change": [row for row, change in changes.items() if abs(change) < POINTS],
    }
    parts = [
        f"{verb} the overhead of {scheme} at "
        + listed([f"{row} ({percent(old[row].mean)} to {percent(new[row].mean)})" for row in rows])
        for verb, rows in groups.items()
        if rows
    ]
    return [f"{name} {', '.join(parts)}."] if parts else []
