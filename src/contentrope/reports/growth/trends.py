"""How each curve runs beyond the training length: level, falling, or away from where it began."""

from __future__ import annotations

import math
from itertools import pairwise

from contentrope.reports.growth.curves import curve, training_length
from contentrope.reports.measured import mean_and_spread, number
from contentrope.reports.read import Results, finite_or_inf, runs_of, variants_of
from contentrope.reports.words import listed, span

STEADY = 0.02
"""A curve within this share of its own value at the training length counts as level."""
MANIFOLD = 1.5
"""From this ratio on, growth is told as "times" instead of percent."""


def trends(results: Results) -> list[str]:
    """One sentence per trend."""
    return [*_level(results), *_falling(results), *_drifts(results)]


def _lengths_grown(results: Results) -> dict[str, list[int]]:
    """By variant: the lengths from the training length on, if there is a finite value there to compare with."""
    start = training_length(results)
    found = {}
    for name in variants_of(results):
        means = {length: value.mean for length, value in curve(results, name).items() if start and length >= start}
        if len(means) > 1 and math.isfinite(means.get(start or 0, math.inf)):
            found[name] = list(means)
    return found


def _ratio(results: Results, variant: str, before: int, after: int) -> float:
    """Mean perplexity at one length over that at another, from the seeds that have both."""
    both = str(before), str(after)
    runs = [run["perplexity"] for run in runs_of(results, variant) if {*both} <= set(run["perplexity"])]
    if not runs:
        return math.nan  # compares as false with everything
    first, second = (mean_and_spread([finite_or_inf(run[length]) for run in runs]).mean for length in both)
    return second / first if math.isfinite(first) else math.inf


def _level(results: Results) -> list[str]:
    grown = _lengths_grown(results)
    level = [
        name
        for name, (start, *longer) in grown.items()
        if all(abs(_ratio(results, name, start, length) - 1) <= STEADY for length in longer)
    ]
    if not grown:
        return []
    claim = f"within {STEADY:.0%} of its own value at {training_length(results):,} at every longer length"
    return [f"Stays {claim}: {listed(level)}." if level else f"No variant stays {claim}."]


def _falling(results: Results) -> list[str]:
    grown = _lengths_grown(results)
    falling = [
        name
        for name, lengths in grown.items()
        if all(_ratio(results, name, before, after) < 1 for before, after in pairwise(lengths))
    ]
    if not grown:
        return []
    claim = f"falls all the way from {training_length(results):,} on"
    return [f"{claim.capitalize()}: {listed(falling)}." if falling else f"No curve {claim}."]


def _drifts(results: Results) -> list[str]:
    """How far each curve that does not stay level ends from where it began."""
    said = []
    for name, (start, *longer) in _lengths_grown(results).items():
        ratios = {length: _ratio(results, name, start, length) for length in longer}
        infinite = [length for length, ratio in ratios.items() if math.isinf(ratio)]
        longest = max(set(longer) - set(infinite), default=None)
        if longest and abs(ratios[longest] - 1) > STEADY:
            said.append(f"{name} at {longest:,} is {_times(ratios[longest])} its value at {start:,}.")
        if infinite:
            said.append(f"{name} is infinite {span(infinite, longer)}.")
    return said


def _times(ratio: float) -> str:
    """A ratio in words.

    >>> _times(12.08), _times(1.11), _times(0.975)
    ('12.1 times', '11.0% above', '2.5% below')
    """
    if ratio >= MANIFOLD:
        return f"{number(ratio, 1)} times"
    return f"{abs(ratio - 1):.1%} {'above' if ratio > 1 else 'below'}"
