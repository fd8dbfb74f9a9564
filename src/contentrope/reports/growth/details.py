"""The smaller tables of a report: position in the window, and use of distant text."""

from __future__ import annotations

import math

from contentrope.reports.measured import Measured, mean_and_spread, number
from contentrope.reports.read import Results, finite_or_inf, parts_of, variants_of
from contentrope.reports.tables import Cell, Table

BINS_SHOWN = 10
AS_WRITTEN = "as written"


# --- position in the window --------------------------------------------------------------------------------------


def position_curves(results: Results) -> tuple[list[int], dict[str, list[Measured]]]:
    """Edges of the bins, and perplexity in each bin by variant; empty where no run has them."""
    found = {name: parts_of(results, name, "by_position") for name in variants_of(results)}
    edges: list[int] = next((parts[0]["edges"] for parts in found.values() if parts), [])
    curves = {}
    for name, parts in found.items():
        # Runs with other bins cannot stand in the same columns.
        if alike := [part["perplexity"] for part in parts if part["edges"] == edges]:
            curves[name] = [mean_and_spread(list(map(finite_or_inf, bins))) for bins in zip(*alike, strict=True)]
    return edges, curves


def position_table(results: Results) -> Table | None:
    """Perplexity by position for a few bins from the first to the last."""
    edges, curves = position_curves(results)
    bins = len(edges) - 1
    if bins < 1:
        return None
    steps = min(bins, BINS_SHOWN) - 1
    places = sorted({round(i * (bins - 1) / max(steps, 1)) for i in range(steps + 1)})
    head = ["position in the window", *(f"{edges[i]:,} to {edges[i + 1] - 1:,}" for i in places)]
    rows = [[Cell(name), *(Cell(number(values[i].mean)) for i in places)] for name, values in curves.items()]
    return Table(head, rows)


# --- distant text ------------------------------------------------------------------------------------------------


def distant_parts(results: Results, variant: str) -> list[Results]:
    return parts_of(results, variant, "distant")


def changes(results: Results, variant: str) -> dict[str, Measured]:
    """By how many percent perplexity changes with each treatment of the distant text, seed by seed."""
    parts = distant_parts(results, variant)
    treatments = [name for name in parts[0]["perplexity"] if name != AS_WRITTEN] if parts else []
    return {name: mean_and_spread([_change(part["perplexity"], name) for part in parts]) for name in treatments}


def _change(perplexity: dict[str, float | None], treatment: str) -> float:
    before, after = finite_or_inf(perplexity[AS_WRITTEN]), finite_or_inf(perplexity.get(treatment))
    return 100 * (after / before - 1) if math.isfinite(before) else math.inf


def distant_table(results: Results) -> Table | None:
    """Perplexity with the text as written, and its change when the distant text is tampered with."""
    found = {name: changes(results, name) for name in variants_of(results) if distant_parts(results, name)}
    if not found:
        return None
    treatments = list(dict.fromkeys(treatment for by_name in found.values() for treatment in by_name))
    rows = []
    for name, by_name in found.items():
        plain = mean_and_spread([finite_or_inf(p["perplexity"][AS_WRITTEN]) for p in distant_parts(results, name)])
        rows.append([Cell(name), Cell(plain.text), *(Cell(percent(by_name.get(t))) for t in treatments)])
    return Table(["distant text", AS_WRITTEN, *treatments], rows)


def percent(change: Measured | None) -> str:
    if change is None:
        return ""
    spread = "" if change.spread is None else f" ± {number(change.spread)}"
    size = number(abs(change.mean))
    sign = "" if size == number(0) else "+" if change.mean > 0 else "−"
    return f"{sign}{size}%{spread}"
