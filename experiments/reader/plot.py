"""Tables and figures of readers: answers by the number of passages, by depth, and by their order."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from experiments import drawing
from experiments.drawing import Plot
from experiments.results import Results, cost_table, keys, numbers, runs, variants
from experiments.tables import Measured, Table, by_column, compared, measured

CAPTION = (
    "untouched: as it came; rope: trained on the same rows as one text, as yarn, with other frequencies; content: "
    "passages are memory units (address=none: nothing tells units apart but their tokens; address=random: the control)."
)
BY_NUMBER = "Answers by number of passages"
ORDERS = {"same answer": "same", "largest difference in logits": "difference"}


def title(results: Results) -> str:
    return "Reading stored documents: SmolLM2-135M-Instruct" if not results["config"].get("model") else "Readers"


def tables(results: Results) -> list[Table]:
    found = [
        number_table(results, "f1"),
        number_table(results, "exact"),
        *depth_tables(results),
        order_table(results),
        number_table(results, "seconds"),
        cost_table(results),
    ]
    return [table for table in found if table is not None]


def figures(results: Results) -> list[Plot]:
    found = number_figure(results)
    return [] if found is None else [found]


HEADS = {
    "f1": "F1, in percent, over all depths of the passage that answers",
    "exact": "Exact match, in percent, over all depths of the passage that answers",
    "seconds": "Seconds for an answer",
}


def by_number(results: Results, variant: str, what: str) -> dict[int, Measured]:
    """By the number of passages, the mean over all depths; of runs that have all of them."""
    depths = {count: keys(results, "answers", count) for count in keys(results, "answers")}
    found = {int(n): [_together(run, n, depths[n], what) for run in runs(results, variant)] for n in depths}
    whole = {count: [value for value in values if value is not None] for count, values in found.items()}
    return {count: measured(values, len(runs(results, variant))) for count, values in whole.items() if values}


def _together(run: Mapping[str, Any], count: str, depths: list[str], what: str) -> float | None:
    by_depth = run.get("answers", {}).get(count, {})
    if any(depth not in by_depth for depth in depths):
        return None
    return fmean(by_depth[depth][what] for depth in depths) * (1.0 if what == "seconds" else 100.0)


def number_table(results: Results, what: str) -> Table | None:
    curves = {name: found for name in variants(results) if (found := by_number(results, name, what))}
    rows: dict[str, dict[str, Any]] = {name: {"passages": name} for name in curves}
    for count in sorted({count for found in curves.values() for count in found}):
        column = {name: found[count] for name, found in curves.items() if count in found}
        for name, cell in compared(column, most=what != "seconds", decimals=2 if what == "seconds" else 1).items():
            rows[name][f"{count:,}"] = cell
    return by_column(list(rows.values()), BY_NUMBER, f"{HEADS[what]}. {CAPTION}") if curves else None


def depth_tables(results: Results) -> list[Table]:
    """F1 by the depth of the passage that answers, a table for each number of passages."""
    found = []
    for count in keys(results, "answers"):
        depths = keys(results, "answers", count)
        rows: dict[str, dict[str, Any]] = {name: {"depth": name} for name in variants(results)}
        for depth in depths if len(depths) > 1 else ():
            values = {name: numbers(results, name, "answers", count, depth, "f1") for name in rows}
            percents = {name: _times_100(value) for name, value in values.items() if value}
            for name, cell in compared(percents, most=True, decimals=1).items():
                rows[name][depth] = cell
        shown = [row for row in rows.values() if len(row) > 1]
        if shown:
            caption = f"F1, in percent, behind {int(count):,} passages, by the depth of the one that answers."
            found.append(by_column(shown, f"Answers by depth, {int(count):,} passages", caption))
    return found


def _times_100(value: Measured) -> Measured:
    return Measured(100 * value.mean, None if value.std is None else 100 * value.std, value.count, value.of)


def order_table(results: Results) -> Table | None:
    """What two orders of the same passages change."""
    rows: dict[str, dict[str, Any]] = {name: {"": name} for name in variants(results)}
    for count in keys(results, "orders"):
        for head, what in ORDERS.items():
            for name in rows:
                if (value := numbers(results, name, "orders", count, what)) is not None:
                    text = f"{100 * value.mean:.0f}%" if what == "same" else f"{value.mean:.1e}"
                    rows[name][f"{head}, {int(count):,} passages"] = text
    shown = [row for row in rows.values() if len(row) > 1]
    caption = "Answers that are the same behind two random orders of the passages, read in one call without a store."
    return by_column(shown, "Order of passages", caption) if shown else None


def number_figure(results: Results) -> Plot | None:
    curves = {name: drawing.finite(by_number(results, name, "f1")) for name in variants(results)}
    curves = {name: found for name, found in curves.items() if found}
    counts = sorted({int(count) for found in curves.values() for count in found})
    if len(counts) < 2:
        return None
    figure, (axes,), _ = drawing.lines([curves], 3.4)
    drawing.log_lengths(axes, counts)
    axes.set(xlabel="passages read", ylabel="F1, in percent")
    axes.set_ylim(bottom=0.0)
    return Plot("numbers", BY_NUMBER, "F1 against the number of passages, one line per variant.", figure)
