"""The same trained models under other exponents of competition.

A model that was trained on one fact at a time has seen none of them: the logarithm of one completed unit is zero.
"""

from __future__ import annotations

from contentrope.reports.facts.paper import paper_scores
from contentrope.reports.facts.rows import HIT, ROWS, by_row, scores
from contentrope.reports.measured import Measured, number
from contentrope.reports.read import Results, parts_of, scheme_and_options, variants_of
from contentrope.reports.tables import Cell, Table, best_of

ByRow = dict[str, Measured]
OWN = "its own"
"""Head of the column as trained, where that has no number."""


def by_exponent(results: Results, variant: str) -> dict[float, ByRow]:
    """Hit@5 by row under every exponent but the variant's own, the smallest first."""
    parts = parts_of(results, variant, "exponents")
    names = sorted({name for part in parts for name in part}, key=float)
    found = {float(name): by_row([part[name] for part in parts if name in part], HIT) for name in names}
    own = own_exponent(variant)
    return {exponent: rows for exponent, rows in found.items() if exponent != own}


def own_exponent(variant: str) -> float | None:
    """The exponent a variant was trained with; None if it learned it, or is named by somebody else.

    >>> own_exponent("content"), own_exponent("content:competition=0.5,noise=1"), own_exponent("content:competition=x")
    (0.0, 0.5, None)
    """
    _, options = scheme_and_options(variant)
    try:
        return None if options.get("learn_competition") == "true" else float(options.get("competition", 0))
    except ValueError:
        return None


def exponent_table(results: Results, variant: str) -> Table | None:
    """Rows down, exponents across, the best of each row in bold, the paper's beside them."""
    found = by_exponent(results, variant)
    if not found:
        return None
    as_trained, own = scores(results, variant), own_exponent(variant)
    before = {} if own is None else {exponent: rows for exponent, rows in found.items() if exponent < own}
    after = {exponent: rows for exponent, rows in found.items() if exponent not in before}
    columns = {f"{exponent:g}": rows for exponent, rows in before.items()}
    columns |= {OWN if own is None else f"{own:g}": as_trained}
    columns |= {f"{exponent:g}": rows for exponent, rows in after.items()}
    printed = paper_scores(results, variant)
    lines = []
    for row in ROWS:
        if row not in as_trained:
            continue
        best = best_of({name: rows[row].mean for name, rows in columns.items() if row in rows}, HIT.printed, most=True)
        cells = [_cell(rows.get(row), name in best) for name, rows in columns.items()]
        lines.append([Cell(row), *cells, *([Cell(number(printed[row], 3), "emphasis")] if printed else [])])
    return Table([f"{variant}, exponent", *columns, *(["paper"] if printed else [])], lines)


def exponent_tables(results: Results) -> list[Table]:
    return [table for name in variants_of(results) if (table := exponent_table(results, name)) is not None]


def _cell(found: Measured | None, best: bool) -> Cell:
    return Cell(found.printed(HIT.decimals) if found else "", "strong" if best else "plain")
