"""Perplexity by variant and length, and what became of the original's."""

from __future__ import annotations

import math

from contentrope.reports.growth.curves import curve, lengths_of, training_length
from contentrope.reports.growth.tables import length_table
from contentrope.reports.measured import Measured, mean_and_spread
from contentrope.reports.read import Results, finite_or_inf, variants_of
from contentrope.reports.retrofit.described import UNTOUCHED, along
from contentrope.reports.tables import Cell, Table


def perplexity_table(results: Results) -> Table:
    """As of context growth, with a column that compares the longest windows with the original at its own length."""
    table = length_table(results, paper=False, along=along(results))
    longest = max(lengths_of(results), default=0)
    if against_original(results, UNTOUCHED, longest) is None:
        return table
    rows = [[*row, Cell(_percent(against_original(results, row[0].text, longest)))] for row in table.rows]
    return Table([*table.head, f"{longest:,} against the original at {training_length(results):,}"], rows)


def against_original(results: Results, variant: str, length: int) -> Measured | None:
    """Percent above the untouched original at its training length, seed by seed; None where either is missing."""
    start = str(training_length(results))
    originals = results["variants"].get(UNTOUCHED, {"runs": {}})["runs"]
    found = []
    for seed, run in results["variants"].get(variant, {"runs": {}})["runs"].items():
        before = finite_or_inf(originals.get(seed, {"perplexity": {}})["perplexity"].get(start))
        if math.isfinite(before) and str(length) in run["perplexity"]:
            found.append(100 * (finite_or_inf(run["perplexity"][str(length)]) / before - 1))
    return mean_and_spread(found) if found else None


def _percent(found: Measured | None) -> str:
    """
    >>> _percent(mean_and_spread([1.23])), _percent(mean_and_spread([-1.0, -2.0]))
    ('+1.2%', '-1.5% ± 0.7%')
    """
    if found is None:
        return ""
    if not math.isfinite(found.mean):
        return "inf"
    return f"{found.mean:+,.1f}%" + (f" ± {found.spread:,.1f}%" if found.spread is not None else "")


def means_at(results: Results, length: int) -> dict[str, float]:
    """By variant, where it was measured."""
    found = {name: curve(results, name).get(length) for name in variants_of(results)}
    return {name: value.mean for name, value in found.items() if value is not None}
