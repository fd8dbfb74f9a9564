"""The twelve rows of the experiment and what was measured in each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from contentrope.reports.measured import Measured, mean_and_spread, number
from contentrope.reports.read import Results, finite_or_inf, runs_of
from contentrope.reports.tables import best_of

CONDITIONS = ("single fact", "same entities", "same relation")
KINDS = ("chain2", "chain3")
NAMES = {"train": "names seen in training", "test": "names not seen in training"}


def row_of(condition: str, kind: str, names: str) -> str:
    """The key of a row in a result file."""
    return f"{condition}, {kind}, {names}"


ROWS = tuple(row_of(*parts) for parts in product(CONDITIONS, KINDS, NAMES))


@dataclass(frozen=True)
class Metric:
    key: str
    title: str
    most: bool
    """Whether more is better."""
    decimals: int | None

    def printed(self, value: float) -> str:
        return number(value, self.decimals)


HIT = Metric("hit5", "Hit@5", most=True, decimals=3)
PERPLEXITY = Metric("perplexity", "Perplexity", most=False, decimals=None)


def scores(results: Results, variant: str, metric: Metric = HIT) -> dict[str, Measured]:
    """By row, over the seeds that have it; rows that no run has are missing."""
    return by_row([run["rows"] for run in runs_of(results, variant)], metric)


def by_row(runs: Sequence[Results], metric: Metric) -> dict[str, Measured]:
    """One metric over several runs, each given as its rows."""
    found = {row: [finite_or_inf(rows[row][metric.key]) for rows in runs if row in rows] for row in ROWS}
    return {row: mean_and_spread(values) for row, values in found.items() if values}


def rows_measured(results: Results, variants: Sequence[str]) -> list[str]:
    return [row for row in ROWS if any(row in scores(results, name) for name in variants)]


def best_in(results: Results, variants: Sequence[str], row: str, metric: Metric = HIT) -> list[str]:
    """The variants that are best in a row, all that print the same; none where that is every one of them."""
    found = {name: scores(results, name, metric) for name in variants}
    means = {name: by_row[row].mean for name, by_row in found.items() if row in by_row}
    return best_of(means, metric.printed, most=metric.most)


def rows_in_words(rows: Sequence[str]) -> str:
    """How many rows, and which; a condition that is there as a whole is named once.

    >>> rows_in_words(["single fact, chain2, test", *ROWS[8:]])
    '5 rows (single fact, chain2, test; all of same relation)'
    >>> rows_in_words(ROWS)
    'every row'
    """
    if len(rows) == len(ROWS):
        return "every row"
    parts: list[str] = []
    for condition in CONDITIONS:
        of_it = [row for row in rows if row.startswith(f"{condition},")]
        whole = len(of_it) == len(ROWS) // len(CONDITIONS)
        parts += [f"all of {condition}"] if whole else of_it
    return f"{len(rows)} row{'s' if len(rows) > 1 else ''} ({'; '.join(parts)})"
