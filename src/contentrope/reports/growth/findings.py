"""What the numbers say, in plain sentences made by rules. Each rule can come out either way, or say nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from contentrope.reports.growth.curves import curve, lengths_of
from contentrope.reports.growth.details import changes
from contentrope.reports.growth.paper import TABLE_1, paper_curve
from contentrope.reports.growth.tables import lowest
from contentrope.reports.growth.trends import trends
from contentrope.reports.measured import number
from contentrope.reports.read import Results, frequency_layout, scheme_and_options, variants_of
from contentrope.reports.words import listed, span

NOTICEABLE = 0.1
"""Percent of perplexity; less is no use of distant text."""


def findings(results: Results) -> list[str]:
    """One sentence per finding, most important first."""
    rules = (_lowest, trends, _nearer, _use)
    return [sentence for rule in rules for sentence in rule(results)]


def _lowest(results: Results) -> list[str]:
    """Which variant is lowest where, and where that is within the noise."""
    names, lengths = variants_of(results), lengths_of(results)
    winners = [(length, tuple(lowest(results, names, length))) for length in lengths]
    parts = []
    for best, group in groupby(winners, key=lambda winner: winner[1]):
        if best:
            parts.append(f"{listed(best)} {span([length for length, _ in group], lengths)}")
    close = [length for length, best in winners if best and _within_noise(results, names, length, best)]
    noise = [f"The gap to the next is smaller than the spread over seeds {span(close, lengths)}."] if close else []
    return [f"Lowest perplexity: {'; '.join(parts)}.", *noise] if parts else []


def _within_noise(results: Results, names: Sequence[str], length: int, best: Sequence[str]) -> bool:
    found = {name: curve(results, name)[length] for name in names if length in curve(results, name)}
    first = found[best[0]]
    others = [value for name, value in found.items() if name not in best]
    second = min(others, key=lambda value: value.mean, default=None)
    return second is not None and not first.differs_from(second)


def paper_distance(results: Results, variant: str) -> float | None:
    """Mean absolute log ratio to the paper over the lengths that both have."""
    ours, theirs = curve(results, variant), paper_curve(results, variant)
    ratios = [abs(math.log(ours[length].mean / theirs[length])) for length in theirs if length in ours]
    return math.fsum(ratios) / len(ratios) if ratios else None


def _nearer(results: Results) -> list[str]:
    said = []
    for scheme in TABLE_1:
        names = [name for name in variants_of(results) if scheme_and_options(name)[0] == scheme]
        layouts = {frequency_layout(results, name): paper_distance(results, name) for name in names}
        heads, model = layouts.get("per_head"), layouts.get("model_wide")
        if heads is None or model is None or math.isinf(min(heads, model)):
            continue
        near, far = ("model-wide", "per-head") if model < heads else ("per-head", "model-wide")
        less, more = number(min(heads, model), 3), number(max(heads, model), 3)
        said.append(
            f"{scheme} is nearer the paper with {near} than with {far} frequencies "
            f"(mean absolute log ratio {less} against {more})."
            if less != more
            else f"{scheme} is equally near the paper with per-head and with model-wide frequencies."
        )
    return said


def _use(results: Results) -> list[str]:
    """Whether deleting the distant text makes a difference: a model that does not use it would not notice."""
    found = {name: changes(results, name).get("deleted") for name in variants_of(results)}
    noticed = {True: list[str](), False: list[str]()}
    for name, deleted in found.items():
        if deleted is not None and math.isfinite(deleted.mean):
            matters = abs(deleted.mean) > max(NOTICEABLE, deleted.spread or 0)
            noticed[matters].append(f"{name} ({deleted.mean:+.2f}%)" if matters else name)
    words = {
        True: "Perplexity changes when the distant text is deleted:",
        False: "Deleting the distant text makes no clear difference to",
    }
    return [f"{words[matters]} {listed(names)}." for matters, names in noticed.items() if names]
