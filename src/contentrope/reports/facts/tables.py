"""The tables of the experiment: rows down, variants across; more distractors; other orders of the facts."""

from __future__ import annotations

from collections.abc import Sequence

from contentrope.reports.facts.paper import paper_scores
from contentrope.reports.facts.rows import HIT, Metric, best_in, rows_measured, scores
from contentrope.reports.measured import Measured, mean_and_spread, number
from contentrope.reports.read import Results, parts_of, runs_of, variants_of
from contentrope.reports.tables import Cell, Table

PRINTED = 2
"""Decimals of the paper's perplexities."""


def row_table(results: Results, metric: Metric = HIT, variants: Sequence[str] | None = None) -> Table:
    """One metric by row (down) and variant (across), the best of each row in bold, the paper's right of ours."""
    shown = variants_of(results) if variants is None else list(variants)
    rows = rows_measured(results, shown)
    best = {row: best_in(results, shown, row, metric) for row in rows}
    head, columns = ["facts, kind, names"], [[Cell(row) for row in rows]]
    for name in shown:
        found, printed = scores(results, name, metric), paper_scores(results, name, metric)
        runs = len(runs_of(results, name))
        head.append(name)
        columns.append([_cell(found.get(row), metric, runs, name in best[row]) for row in rows])
        if printed:
            head.append("paper")
            columns.append([Cell(number(printed[row], metric.decimals or PRINTED), "emphasis") for row in rows])
    lines = [list(line) for line in zip(*columns, strict=True)]
    return Table(head, [*lines, *_seeds_row(results, shown, head)])


def _cell(found: Measured | None, metric: Metric, runs: int, best: bool) -> Cell:
    if found is None:
        return Cell("")
    # One value shows itself by its missing spread; some but not all seeds would not.
    partial = f" (n={found.count})" if 1 < found.count < runs else ""
    return Cell(found.printed(metric.decimals) + partial, "strong" if best else "plain")


def _seeds_row(results: Results, variants: Sequence[str], head: Sequence[str]) -> list[list[Cell]]:
    """How many seeds each variant has, where they differ."""
    counts = [len(runs_of(results, name)) for name in variants]
    if len(set(counts)) < 2:
        return []
    left = iter(counts)
    return [[Cell("seeds"), *(Cell("" if title == "paper" else str(next(left))) for title in head[1:])]]


def order_table(results: Results) -> Table | None:
    """What another order of the facts changes."""
    rows = []
    for name in variants_of(results):
        if parts := parts_of(results, name, "order"):
            changed = mean_and_spread([100 * part["answers_changed"] for part in parts])
            largest = max(part["largest_change"] for part in parts)
            sizes = [f"{parts[0][size]:,}" for size in ("examples", "permutations")]
            precise = [part["largest_change_float64"] for part in parts if "largest_change_float64" in part]
            in_float64 = change_of_logit(max(precise)) if precise else ""
            rows.append([name, *sizes, changed.printed(1), change_of_logit(largest), in_float64])
    head = ["", "examples a run", "orders of each", "answers changed, %", "largest change of a logit", "in float64"]
    if not any(row[-1] for row in rows):  # older files
        head, rows = head[:-1], [row[:-1] for row in rows]
    return Table(head, [list(map(Cell, row)) for row in rows]) if rows else None


def change_of_logit(value: float) -> str:
    """Rounding errors stay visible as such.

    >>> change_of_logit(1.234), change_of_logit(3.1e-6), change_of_logit(0.0)
    ('1.23', '3.1e-06', '0')
    """
    if value == 0:
        return "0"
    return number(value) if value >= 0.01 else f"{value:.1e}"
