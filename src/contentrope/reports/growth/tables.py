"""The table of the experiment: perplexity by variant and length."""

from __future__ import annotations

from collections.abc import Sequence

from contentrope.reports.growth.curves import curve, lengths_of
from contentrope.reports.growth.paper import paper_curve
from contentrope.reports.measured import number
from contentrope.reports.read import Results, runs_of, variants_of
from contentrope.reports.tables import Cell, Table, best_of


def length_table(
    results: Results, variants: Sequence[str] | None = None, *, paper: bool = True, along: str = "characters read"
) -> Table:
    """Perplexity by variant (down) and length (across), the lowest of each column in bold, the paper's below ours."""
    shown = variants_of(results) if variants is None else list(variants)
    lengths = [length for length in lengths_of(results) if any(length in curve(results, name) for name in shown)]
    counts = {len(runs_of(results, name)) for name in shown}
    best = {length: lowest(results, shown, length) for length in lengths}
    rows = []
    for name in shown:
        seeds = [Cell(str(len(runs_of(results, name))))] if len(counts) > 1 else []
        rows.append([Cell(name), *seeds, *(_length_cell(results, name, length, best[length]) for length in lengths)])
        printed = paper_curve(results, name) if paper else {}
        if set(printed) & set(lengths):
            theirs = [Cell(number(printed[n]) if n in printed else "", "emphasis") for n in lengths]
            rows.append([Cell("paper", "emphasis"), *(Cell("") for _ in seeds), *theirs])
    return Table([along, *(["seeds"] if len(counts) > 1 else []), *(f"{n:,}" for n in lengths)], rows)


def _length_cell(results: Results, variant: str, length: int, best: Sequence[str]) -> Cell:
    found = curve(results, variant).get(length)
    if found is None:
        return Cell("")
    # One value shows itself by its missing spread; some but not all seeds would not.
    partial = 1 < found.count < len(runs_of(results, variant))
    return Cell(found.text + (f" (n={found.count})" if partial else ""), "strong" if variant in best else "plain")


def lowest(results: Results, variants: Sequence[str], length: int) -> list[str]:
    """The variants with the lowest mean, all that print the same; none where that is every one of them."""
    found = {name: curve(results, name)[length].mean for name in variants if length in curve(results, name)}
    return best_of(found, number)
