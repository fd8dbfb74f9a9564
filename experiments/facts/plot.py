"""Tables and figures of retrieval from facts: hit@5 and perplexity by row, exponent and number of distractors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from experiments import drawing
from experiments.drawing import FAINT, Plot
from experiments.facts.inside import address_figure, attention_figures
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

CONDITIONS, KINDS, NAMES = ("single fact", "same entities", "same relation"), ("chain2", "chain3"), ("train", "test")
GROUPS = tuple(product(CONDITIONS, KINDS))
ROWS = tuple(", ".join(parts) for parts in product(CONDITIONS, KINDS, NAMES))
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
LANE, LEAST_GROUP, FILLED = 0.125, 0.45, 0.8
"""Inches for each variant in a group, for a group at least, and the share of a group that its marks take."""
ITS_OWN = "its own"
"""Head of the column as trained, where the exponent is no single number."""

# --- the paper -----------------------------------------------------------------------------------------------------

WEAK, STRONG = 2.0**-8, 2.0**-2
"""The slopes of its two ALiBi models, which it prints as .004 and .25."""
PAPER_MODELS = ("rope", f"alibi {WEAK}", f"alibi {STRONG}", "content")
PAPER_NAMES, PAPER_DISTRACTORS, PAPER_FACTS = (3000, 100), 4, [1, 1]
_HITS = (
    (1.000, 0.112, 0.959, 1.000), (0.916, 0.029, 0.653, 0.898),
    (0.957, 0.008, 0.825, 1.000), (0.728, 0.000, 0.382, 0.800),
    (1.000, 0.250, 0.871, 1.000), (0.964, 0.102, 0.628, 0.970),
    (0.696, 0.014, 0.510, 1.000), (0.603, 0.000, 0.245, 0.878),
    (0.323, 0.029, 0.034, 0.665), (0.208, 0.010, 0.015, 0.523),
    (0.042, 0.001, 0.003, 0.366), (0.016, 0.000, 0.002, 0.190),
)  # fmt: skip
_PERPLEXITIES = (
    (1.13, 15.22, 1.47, 1.09), (1.70, 59.05, 3.20, 1.70),
    (1.28, 14.44, 1.49, 1.22), (2.23, 58.36, 3.60, 2.01),
    (1.17, 10.63, 1.80, 1.08), (1.43, 22.86, 3.57, 1.36),
    (2.17, 15.24, 2.14, 1.22), (3.03, 31.33, 4.66, 1.68),
    (2.90, 23.37, 21.74, 2.13), (6.32, 46.70, 384.65, 3.83),
    (7.88, 28.00, 16.13, 2.17), (26.38, 50.41, 375.92, 5.51),
)  # fmt: skip
PAPER: dict[str, dict[str, dict[str, float]]] = {
    metric: {model: dict(zip(ROWS, column, strict=True)) for model, column in zip(PAPER_MODELS, columns, strict=True)}
    for metric, columns in ((HIT, zip(*_HITS, strict=True)), (PERPLEXITY, zip(*_PERPLEXITIES, strict=True)))
}
"""Its table of complete results: by metric, model and row."""


def paper_scores(results: Results, variant: str, metric: str = HIT) -> Mapping[str, float]:
    """By row, for what ``variant`` repeats on the same task; empty where the paper has none."""
    corpus, config = results["corpus"], results["config"]
    names = corpus.get("names"), corpus.get("test_names")
    alike = names == PAPER_NAMES and config.get("distractors") == PAPER_DISTRACTORS
    if not alike or config.get("facts") != PAPER_FACTS:
        return {}
    scheme, options = scheme_and_options(variant)
    if scheme == "alibi" and set(options) == {"slopes"}:
        return PAPER[metric].get(f"alibi {options['slopes'].strip('[]')}", {})
    return {} if options else PAPER[metric].get(scheme, {})


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
            line += [
                cells.get(name, Cell("")),
                *([paper(theirs[name][row], decimals or 2)] if theirs.get(name) else []),
            ]
        rows += [line] if cells else []
    return [head for name in found for head in ([name, "paper"] if theirs.get(name) else [name])], rows


def scaling_table(results: Results, metric: str = HIT) -> Table | None:
    """Kinds and variants down, numbers of distractors across, the best of each kind and number in bold."""
    counts = keys(results, "scaling")
    rows = []
    for kind in KINDS:
        found = {n: _by_variant(results, "scaling", n, kind, metric) for n in counts}
        cells = {n: compared(found[n], most=metric == HIT, decimals=DECIMALS[metric]) for n in counts}
        for name in variants(results):
            if any(name in cells[n] for n in counts):
                rows.append([Cell(f"{kind}, {name}"), *(cells[n].get(name, Cell("")) for n in counts)])
    head = [f"{WORDS[metric]} by distractors", *(f"{int(n):,}" for n in counts)]
    caption = f"{WORDS[metric]} among more facts of the same relation, names not seen in training."
    return Table(head, rows, DISTRACTORS, caption) if rows else None


def _by_variant(results: Results, *path: str) -> dict[str, Measured]:
    return {name: found for name in variants(results) if (found := numbers(results, name, *path)) is not None}


def order_table(results: Results) -> Table | None:
    """What another order of the facts changes."""
    rows = []
    for name in variants(results):
        if parts := [part for part in values(results, name, "order") if part]:
            exact = [part["largest_change_float64"] for part in parts if "largest_change_float64" in part]
            rows.append(
                {
                    "": name,
                    "examples a run": f"{parts[0]['examples']:,}",
                    "orders of each": f"{parts[0]['permutations']:,}",
                    "answers changed, %": measured([100 * part["answers_changed"] for part in parts]).text(1),
                    "largest change of a logit": _change(max(part["largest_change"] for part in parts)),
                    "in float64": _change(max(exact)) if exact else "",
                }
            )
    return by_column(rows, ORDER, "The same facts before the same sentence, in another order.") if rows else None


def _change(value: float) -> str:
    """Rounding errors stay visible as such."""
    return "0" if value == 0 else number(value) if value >= 0.01 else f"{value:.1e}"


# --- figures -------------------------------------------------------------------------------------------------------


def figures(results: Results) -> list[Plot]:
    found = [hit_figure(results), scaling_figure(results), loss_figure(results)]
    found += [*attention_figures(results), address_figure(results)]
    return [plot for plot in found if plot is not None]


def hit_figure(results: Results) -> Plot | None:
    """Conditions and kinds down, seen and unseen names side by side."""
    found = {name: by_row for name in variants(results) if (by_row := scores(results, name))}
    if not found:
        return None
    styles, theirs = drawing.looks(list(found)), {name: paper_scores(results, name) for name in found}
    height = len(GROUPS) * max(LANE * len(styles), LEAST_GROUP) + 0.3
    figure, panels = drawing.canvas(height, list(styles), columns=2, sharex=True, sharey=True)
    for axes, names, words in zip(panels, NAMES, ("names seen in training", "names not seen"), strict=True):
        axes.set_title(words, fontsize=10)
        axes.set(xlim=(-0.03, 1.03), ylim=(len(GROUPS) - 0.5, -0.5), xlabel="hit@5")
        axes.set_yticks(range(len(GROUPS)), ["\n".join(group) for group in GROUPS])
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        drawing.bands(axes.axhspan, len(GROUPS))
        for place, (name, look) in enumerate(styles.items()):
            lane = FILLED * ((place + 0.5) / len(styles) - 0.5)
            drawing.draw(axes, _lanes(found[name], names, lane), look, across=True, line=False)
            printed = _lanes(theirs[name], names, lane)
            axes.plot(list(printed.values()), list(printed), **look.drawn(hollow=True))
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
        means = (
            {step: measured([measured([curve[step] for curve in alike]).mean]) for step in alike[0]} if alike else {}
        )
        curves |= {name: found} if (found := drawing.finite(means)) else {}
    heights = [value.mean for curve in curves.values() for value in curve.values() if value.mean > 0]
    if not heights:
        return None
    figure, (axes,), _ = drawing.lines([curves], 3.4)
    drawing.log_values(axes, min(heights), max(heights))
    axes.set(xlabel="training step", ylabel="loss")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    return Plot("losses", "Training", "Training loss against steps, mean over seeds.", figure)
