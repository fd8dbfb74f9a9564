"""What training took, variant by variant."""

from __future__ import annotations

from collections.abc import Callable

from contentrope.reports.measured import Measured, mean_and_spread
from contentrope.reports.read import Results, runs_of, variants_of
from contentrope.reports.tables import Cell, Table

_COSTS: dict[str, tuple[str, Callable[[Measured], str]]] = {
    "parameters": ("parameters", lambda found: f"{found.mean:,.0f}"),
    "final_loss": ("final loss", lambda found: found.text),
    "training_seconds": ("training, s", lambda found: found.text),
    "steps_per_second": ("steps per second", lambda found: found.text),
    "evaluation_seconds": ("evaluation, s", lambda found: found.text),
}


def cost_table(results: Results) -> Table:
    """What each variant took, as a mean over its seeds."""
    rows = [[Cell(name), *(_cost(results, name, key) for key in _COSTS)] for name in variants_of(results)]
    return Table(["", *(title for title, _ in _COSTS.values())], rows)


def _cost(results: Results, variant: str, key: str) -> Cell:
    values = [run[key] for run in runs_of(results, variant) if run.get(key) is not None]
    return Cell(_COSTS[key][1](mean_and_spread(values)) if values else "")
