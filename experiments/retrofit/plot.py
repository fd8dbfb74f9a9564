"""Tables and figures of retrofit: perplexity by length of one model, untouched and converted in several ways."""

from __future__ import annotations

from dataclasses import replace

from experiments.drawing import Plot
from experiments.growth.plot import curve_figure, length_table, lengths
from experiments.results import Results, cost_table
from experiments.tables import Cell, Measured, Table, measured, percent

UNTOUCHED = "untouched"
CAPTION = (
    f"{UNTOUCHED}: the original as it is; rope: trained on for as many steps; content: content addresses and local "
    "positions, all weights trained (positions=gated: by way of positions between global and local; train=lora: "
    "low-rank changes and the addresses; train=addresses: these alone; start=back,train=nothing: earlier units seem to "
    "lie a long unit back, nothing is trained); pi, ntk, yarn: frequencies rescaled, then trained for as many steps."
)


def title(results: Results) -> str:
    return f"Retrofit of {results['config'].get('model') or 'a small model'} on {results['corpus']['name']}"


def tables(results: Results) -> list[Table]:
    return [perplexity_table(results), cost_table(results)]


def figures(results: Results) -> list[Plot]:
    plot = curve_figure(results, against_paper=False, along=_along(results))
    return [plot] if plot else []


def perplexity_table(results: Results) -> Table:
    """As of context growth, with a column that compares the longest windows with the original at its own length."""
    table = length_table(results, against_paper=False, along=_along(results))
    table = replace(table, caption=f"{table.caption} {CAPTION}")
    longest, start = max(lengths(results), default=0), results["config"]["length"]
    changes = {row[0].text: against_original(results, row[0].text, longest) for row in table.rows}
    if changes.get(UNTOUCHED) is None:
        return table
    rows = [[*row, Cell(percent(changes[row[0].text], minus="-"))] for row in table.rows]
    return replace(table, head=[*table.head, f"{longest:,} against the original at {start:,}"], rows=rows)


def against_original(results: Results, variant: str, length: int) -> Measured | None:
    """Percent above the untouched original at its training length, seed by seed; None where either is missing."""
    originals = results["variants"].get(UNTOUCHED, {"runs": {}})["runs"]
    found = []
    for seed, run in results["variants"][variant]["runs"].items():
        before = originals.get(seed, {"perplexity": {}})["perplexity"].get(str(results["config"]["length"]))
        if before is not None and str(length) in run["perplexity"]:
            after = run["perplexity"][str(length)]
            found.append(None if after is None else 100 * (after / before - 1))
    return measured(found) if found else None


def _along(results: Results) -> str:
    """What a window is made of: the model that is trained here reads characters."""
    return "tokens read" if results["config"].get("model") else "characters read"
