"""More and more distractors: hit@5 and perplexity by their number, on unseen names and the same relation."""

from __future__ import annotations

from contentrope.reports.facts.rows import HIT, KINDS, Metric
from contentrope.reports.measured import Measured, mean_and_spread
from contentrope.reports.read import Results, finite_or_inf, parts_of, variants_of
from contentrope.reports.tables import Cell, Table, best_of

ENOUGH = 0.90
"""The hit@5 from which on retrieval counts as working."""


def by_distractors(results: Results, variant: str, kind: str, metric: Metric = HIT) -> dict[int, Measured]:
    """One metric by the number of distractors, over the seeds that have it."""
    found: dict[int, list[float]] = {}
    for part in parts_of(results, variant, "scaling"):
        for count, by_kind in part.items():
            if kind in by_kind:
                found.setdefault(int(count), []).append(finite_or_inf(by_kind[kind][metric.key]))
    return {count: mean_and_spread(found[count]) for count in sorted(found)}


def distractor_counts(results: Results) -> list[int]:
    """Every number of distractors that some run has."""
    return sorted({n for name in variants_of(results) for kind in KINDS for n in by_distractors(results, name, kind)})


def bears(results: Results, variant: str, kind: str = "chain2") -> int | None:
    """The largest number of distractors up to which hit@5 is enough; 0: not even with the fewest, None: unknown."""
    found = by_distractors(results, variant, kind)
    largest = 0
    for count, value in found.items():
        if round(value.mean, 3) < ENOUGH:
            break
        largest = count
    return largest if found else None


def scaling_table(results: Results, metric: Metric = HIT) -> Table | None:
    """Variants and kinds down, numbers of distractors across, the best of each kind and number in bold."""
    counts = distractor_counts(results)
    if not counts:
        return None
    rows = []
    for kind in KINDS:
        curves = {name: by_distractors(results, name, kind, metric) for name in variants_of(results)}
        best = {count: _best(curves, count, metric) for count in counts}
        for name, curve in curves.items():
            if curve:
                cells = [_cell(curve.get(count), metric, name in best[count]) for count in counts]
                rows.append([Cell(f"{kind}, {name}"), *cells])
    return Table([f"{metric.title} by distractors", *(f"{count:,}" for count in counts)], rows)


def _best(curves: dict[str, dict[int, Measured]], count: int, metric: Metric) -> list[str]:
    means = {name: curve[count].mean for name, curve in curves.items() if count in curve}
    return best_of(means, metric.printed, most=metric.most)


def _cell(found: Measured | None, metric: Metric, best: bool) -> Cell:
    return Cell(found.printed(metric.decimals) if found else "", "strong" if best else "plain")
