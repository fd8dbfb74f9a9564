"""Perplexity by length, as a result file has it."""

from __future__ import annotations

from contentrope.reports.measured import Measured, mean_and_spread
from contentrope.reports.read import Results, all_runs, finite_or_inf, runs_of, setting


def lengths_of(results: Results) -> list[int]:
    """Every length that some run was evaluated at."""
    return sorted({int(length) for run in all_runs(results) for length in run["perplexity"]})


def lengths_to_compare(results: Results) -> list[int]:
    """The lengths that score the same text; windows read once, with the first seed alone, score another."""
    once = setting(results, "once") or ()
    return [length for length in lengths_of(results) if length not in once]


def training_length(results: Results) -> int | None:
    """Characters per training window; the shortest evaluation length if the settings do not say."""
    length = setting(results, "length", "train_length", "training_length")
    return length if isinstance(length, int) else min(lengths_of(results), default=None)


def curve(results: Results, variant: str) -> dict[int, Measured]:
    """Perplexity by length, over the seeds that have it."""
    found: dict[int, list[float]] = {}
    for run in runs_of(results, variant):
        for length, value in run["perplexity"].items():
            found.setdefault(int(length), []).append(finite_or_inf(value))
    return {length: mean_and_spread(found[length]) for length in sorted(found)}
