"""Tables and figures of retrieval from facts: hit@5 and perplexity by row, exponent and number of distractors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from experiments import drawing
from experiments.drawing import FAINT, Plot
from experiments.facts import CONDITIONS, KINDS, NAMES, ROWS
from experiments.facts.inside import address_figure, attention_figure
from experiments.results import (
    Results,
    cost_table,
    is_number,
    keys,
    numbers,
    runs,
    scheme_and_options,
    values,
    variants,
)
from experiments.tables import Cell, Measured, Table, by_column, compared, measured, number, paper

HIT, PERPLEXITY = "hit5", "perplexity"
DECIMALS = {HIT: 3, PERPLEXITY: None}
WORDS = {HIT: "Hit@5", PERPLEXITY: "Perplexity"}
CAPTIONS = {
    HIT: "The share of examples in which every character asked for is among the five most likely; higher is better. "
    "Single fact: nothing else is read. Same entities: the other facts have the same names in other relations. Same "
    "relation: other names in the same relation. chain2 facts have two names, chain3 facts three; train: names seen in "
    "training, test: others.",
    PERPLEXITY: "Perplexity of the characters asked for; lower is better.",
}
ENOUGH = 0.90
"""The hit@5 from which on retrieval counts as working."""
EXPONENTS, DISTRACTORS, ORDER = "Other exponents", "More distractors", "The order of the facts"
GROUPS = list(product(CONDITIONS, KINDS))
LANE, LEAST_GROUP, FILLED = 0.125, 0.45, 0.8
"""Inches for each variant in a group, for a group at least, and the share of a group that its marks take."""
ITS_OWN = "its own"
"""Head of the column as trained, where the exponent is no single number."""

# --- the paper -----------------------------------------------------------------------------------------------------

_COLUMNS = {
    HIT: {
        "rope": (1.000, 0.916, 0.957, 0.728, 1.000, 0.964, 0.696, 0.603, 0.323, 0.208, 0.042, 0.016),
        "alibi 0.00390625": (0.112, 0.029, 0.008, 0.000, 0.250, 0.102, 0.014, 0.000, 0.029, 0.010, 0.001, 0.000),
        "alibi 0.25": (0.959, 0.653, 0.825, 0.382, 0.871, 0.628, 0.510, 0.245, 0.034, 0.015, 0.003, 0.002),
        "content": (1.000, 0.898, 1.000, 0.800, 1.000, 0.970, 1.000, 0.878, 0.665, 0.523, 0.366, 0.190),
    },
    PERPLEXITY: {
        "rope": (1.13, 1.70, 1.28, 2.23, 1.17, 1.43, 2.17, 3.03, 2.90, 6.32, 7.88, 26.38),
        "alibi 0.00390625": (15.22, 59.05, 14.44, 58.36, 10.63, 22.86, 15.24, 31.33, 23.37, 46.70, 28.00, 50.41),
        "alibi 0.25": (1.47, 3.20, 1.49, 3.60, 1.80, 3.57, 2.14, 4.66, 21.74, 384.65, 16.13, 375.92),
        "content": (1.09, 1.70, 1.22, 2.01, 1.08, 1.36, 1.22, 1.68, 2.13, 3.83, 2.17, 5.51),
    },
}  # fmt: skip
PAPER: dict[str, dict[str, dict[str, float]]] = {
    metric: {model: dict(zip(ROWS, column, strict=True)) for model, column in by_model.items()}
    for metric, by_model in _COLUMNS.items()
}
"""Its table of complete results, by metric, model and row; it prints the slopes of its ALiBi models as .004 and .25."""


def paper_scores(results: Results, variant: str, metric: str = HIT) -> Mapping[str, float]:
    """By row, for what ``variant`` repeats on the same task; empty where the paper has none."""
    corpus, config = results["corpus"], results["config"]
    task = corpus.get("names"), corpus.get("test_names"), config.get("distractors"), config.get("facts")
    scheme, options = scheme_and_options(variant)
    if scheme == "alibi" and set(options) == {"slopes"}:
        scheme, options = f"alibi {options['slopes'].strip('[]')}", {}
    return {} if options or task != (3000, 100, 4, [1, 1]) else PAPER[metric].get(scheme, {})


# --- tables --------------------------------------------------------------------------------------------------------


def title(results: Results) -> str:
    return "Retrieval from facts"


def tables(results: Results) -> list[Table]:
    exponents = [exponent_table(results, name) for name in variants(results)]
    scaling = [scaling_table(results, metric) for metric in (HIT, PERPLEXITY)]
    found = [row_table(results), row_table(results, PERPLEXITY), *exponents, *scaling, order_table(results)]
    return [table for table in (*found, cost_table(results)) if table is not None and table.rows]


def scores(results: Results, variant: str, metric: str = HIT, *under: str) -> dict[str, Measured]:
    """By row, of the rows that some run has; ``under`` another exponent than the variant's own."""
    path, asked = under or ("rows",), {row for run in runs(results, variant) for row in run["rows"]}
    found = {row: numbers(results, variant, *path, row, metric) for row in ROWS if row in asked}
    return {row: value for row, value in found.items() if value is not None}


def row_table(results: Results, metric: str = HIT, names: Sequence[str] | None = None) -> Table:
    """Rows down, variants across, the best of each row in bold, the paper's right of ours."""
    found = {name: scores(results, name, metric) for name in names or variants(results)}
    head, rows = _by_row(found, {name: paper_scores(results, name, metric) for name in found}, metric)
    counts = {name: str(len(runs(results, name))) for name in found}
    if len(set(counts.values())) > 1 and rows:
        rows.append([Cell("seeds"), *(Cell(counts.get(name, "")) for name in head)])
    return Table(["facts, kind, names", *head], rows, f"{WORDS[metric]} by row", CAPTIONS[metric])


def exponent_table(results: Results, variant: str) -> Table | None:
    """The same trained models under other exponents of competition, the best of each row in bold."""
    every = {f"{float(key):g}": scores(results, variant, HIT, "exponents", key) for key in keys(results, "exponents")}
    found = {key: by_row for key, by_row in every.items() if by_row}
    options = {"competition": "0"} | scheme_and_options(variant)[1]
    fixed = is_number(options["competition"]) and options.get("learn_competition") != "true"
    own = f"{float(options['competition']):g}" if fixed else ITS_OWN
    if not found.keys() - {own}:
        return None
    found[own] = scores(results, variant)
    order = sorted(found, key=lambda key: -1 if key == ITS_OWN else float(key))
    theirs = {order[-1]: paper_scores(results, variant)}
    head, rows = _by_row({key: found[key] for key in order}, theirs, HIT)
    caption = "Hit@5 of the same models under other exponents than they were trained with."
    return Table([f"{variant}, exponent", *head], rows, EXPONENTS, caption)


def _by_row(
    found: Mapping[str, Mapping[str, Measured]], theirs: Mapping[str, Mapping[str, float]], metric: str
) -> tuple[list[str], list[list[Cell]]]:
    """Heads and rows of columns with numbers by row, the paper's right of what repeats it."""
    rows, decimals = [], DECIMALS[metric]
    for row in ROWS:
        ours = {name: by_row[row] for name, by_row in found.items() if row in by_row}
        cells = compared(ours, most=metric == HIT, decimals=decimals)
        line = [Cell(row)]
        for name in found:
            printed = [paper(theirs[name][row], decimals or 2)] if theirs.get(name) else []
            line += [cells.get(name, Cell("")), *printed]
        rows += [line] if cells else []
    return [head for name in found for head in ([name, "paper"] if theirs.get(name) else [name])], rows


def scaling_table(results: Results, metric: str = HIT) -> Table | None:
    """Kinds and variants down, numbers of distractors across, the best of each kind and number in bold."""
    counts = keys(results, "scaling")
    rows = []
    for kind in KINDS:
        columns = []
        for n in counts:
            found = {name: numbers(results, name, "scaling", n, kind, metric) for name in variants(results)}
            there = {name: value for name, value in found.items() if value is not None}
            columns.append(compared(there, most=metric == HIT, decimals=DECIMALS[metric]))
        for name in variants(results):
            if any(name in cells for cells in columns):
                rows.append([Cell(f"{kind}, {name}"), *(cells.get(name, Cell("")) for cells in columns)])
    head = [f"{WORDS[metric]} by distractors", *(f"{int(n):,}" for n in counts)]
    caption = f"{WORDS[metric]} among more facts of the same relation, names not seen in training."
    return Table(head, rows, DISTRACTORS, caption) if rows else None


def order_table(results: Results) -> Table | None:
    """What another order of the facts changes."""
    rows = []
    for name in variants(results):
        if parts := [part for part in values(results, name, "order") if part]:
            exact = [part["largest_change_float64"] for part in parts if "largest_change_float64" in part]
            row = {"": name, "examples a run": f"{parts[0]['examples']:,}"}
            row["orders of each"] = f"{parts[0]['permutations']:,}"
            row["answers changed, %"] = measured([100 * part["answers_changed"] for part in parts]).text(1)
            row["largest change of a logit"] = _change(max(part["largest_change"] for part in parts))
            rows.append(row | {"in float64": _change(max(exact)) if exact else ""})
    return by_column(rows, ORDER, "The same facts before the same sentence, in another order.") if rows else None


def _change(value: float) -> str:
    """Rounding errors stay visible as such."""
    return "0" if value == 0 else number(value) if value >= 0.01 else f"{value:.1e}"


# --- figures -------------------------------------------------------------------------------------------------------


def figures(results: Results) -> list[Plot]:
    kinds = hit_figure, scaling_figure, loss_figure, attention_figure, address_figure
    found = [draw(results) for draw in kinds]
    return [plot for plot in found if plot is not None]


def hit_figure(results: Results) -> Plot | None:
    """Conditions and kinds down, seen and unseen names side by side."""
    found = {name: by_row for name in variants(results) if (by_row := scores(results, name))}
    if not found:
        return None
    styles, theirs = drawing.styles_of(list(found)), {name: paper_scores(results, name) for name in found}
    height = len(GROUPS) * max(LANE * len(styles), LEAST_GROUP) + 0.3
    figure, panels = drawing.canvas(height, list(styles), columns=2, sharex=True, sharey=True)
    for axes, names, words in zip(panels, NAMES, ("names seen in training", "names not seen"), strict=True):
        axes.set_title(words, fontsize=10)
        axes.set(xlim=(-0.03, 1.03), ylim=(len(GROUPS) - 0.5, -0.5), xlabel="hit@5")
        axes.set_yticks(range(len(GROUPS)), ["\n".join(group) for group in GROUPS])
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        drawing.bands(axes.axhspan, len(GROUPS))
        for place, (name, style) in enumerate(styles.items()):
            lane = FILLED * ((place + 0.5) / len(styles) - 0.5)
            drawing.draw(axes, _lanes(found[name], names, lane), style, across=True, line=False)
            printed = _lanes(theirs[name], names, lane)
            axes.plot(list(printed.values()), list(printed), **style.drawn(hollow=True))
    drawing.legend(figure, styles, paper=any(theirs.values()), line=False)
    return Plot("hits", f"{WORDS[HIT]} by row", "Hit@5 by condition, kind and names, one mark per variant.", figure)


def _lanes(by_row: Mapping[str, Any], names: str, lane: float) -> dict[float, Any]:
    places = {at + lane: ", ".join((*group, names)) for at, group in enumerate(GROUPS)}
    return {place: by_row[row] for place, row in places.items() if row in by_row}


def scaling_figure(results: Results) -> Plot | None:
    counts = keys(results, "scaling")
    names = [name for name in variants(results) if values(results, name, "scaling")]
    curves = [
        {name: drawing.finite({n: numbers(results, name, "scaling", n, kind, HIT) for n in counts}) for name in names}
        for kind in KINDS
    ]
    if not counts:
        return None
    figure, panels, _ = drawing.lines(curves, 3.4, columns=len(KINDS), sharey=True)
    for axes, kind in zip(panels, KINDS, strict=True):
        drawing.log_lengths(axes, list(map(int, counts)))
        axes.set(ylim=(-0.03, 1.03), xlabel="distractors")
        axes.set_title(kind, fontsize=10)
        axes.axhline(ENOUGH, color=FAINT, lw=1, ls=":", zorder=1)
    panels[0].set_ylabel("hit@5")
    return Plot("scaling", DISTRACTORS, f"Hit@5 against the number of distractors; dotted: {ENOUGH}.", figure)


def loss_figure(results: Results) -> Plot | None:
    """Means over the seeds that tell the loss at the same steps as the first of them."""
    curves: dict[str, dict[float, Measured]] = {}
    for name in variants(results):
        told = [dict(losses) for losses in values(results, name, "losses") if losses]
        alike = [curve for curve in told if list(curve) == list(told[0])]
        steps = alike[0] if alike else ()
        means = {step: measured([measured([curve[step] for curve in alike]).mean]) for step in steps}
        curves |= {name: found} if (found := drawing.finite(means)) else {}
    heights = [value.mean for curve in curves.values() for value in curve.values() if value.mean > 0]
    if not heights:
        return None
    figure, (axes,), _ = drawing.lines([curves], 3.4)
    drawing.log_values(axes, min(heights), max(heights))
    axes.set(xlabel="training step", ylabel="loss")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    return Plot("losses", "Training", "Training loss against steps, mean over seeds.", figure)
