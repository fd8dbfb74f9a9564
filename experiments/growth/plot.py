"""Tables and figures of context growth: perplexity by length, by position in the window, and use of distant text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from experiments import drawing
from experiments.drawing import Plot
from experiments.results import Results, all_runs, cost_table, keys, numbers, runs, scheme_and_options, values, variants
from experiments.tables import Cell, Measured, Table, compared, measured, number, paper, percent

PAPER_LENGTHS = (256, 512, 1024, 2048, 4096)
PAPER = {
    scheme: dict(zip(PAPER_LENGTHS, found, strict=True))
    for scheme, found in {
        "content": (4.81, 4.74, 4.85, 4.83, 4.86),
        "random": (4.89, 4.79, 4.90, 4.87, 4.91),
        "alibi": (4.96, 4.94, 4.96, 4.93, 4.93),
        "rope": (4.70, 5.99, 8.23, 10.71, 13.36),
    }.items()
}
"""Table 1: perplexity on Tiny Shakespeare, trained on windows of 256 characters."""
BY_LENGTH, BY_POSITION, DISTANT = "Perplexity by length", "By position in the window", "Use of distant text"
BINS_SHOWN, AS_WRITTEN = 10, "as written"
CROWDED, LEVEL = 2.0, 1.4
"""A close-up shows the curves that stay within LEVEL of the lowest value, if others pass CROWDED times it."""


def title(results: Results) -> str:
    return f"Context growth on {results['corpus']['name']}"


def tables(results: Results) -> list[Table]:
    found = [length_table(results), position_table(results), distant_table(results), cost_table(results)]
    return [table for table in found if table is not None]


def figures(results: Results) -> list[Plot]:
    return [plot for plot in (curve_figure(results), position_figure(results)) if plot is not None]


# --- by length -----------------------------------------------------------------------------------------------------


def lengths(results: Results) -> list[int]:
    """Every length that some run was evaluated at."""
    return sorted({int(length) for run in all_runs(results) for length in run.get("perplexity", {})})


def curve(results: Results, variant: str) -> dict[int, Measured]:
    """Perplexity by length, over the seeds that have it."""
    found = {length: numbers(results, variant, "perplexity", str(length)) for length in lengths(results)}
    return {length: value for length, value in found.items() if value is not None}


def paper_curve(results: Results, variant: str) -> dict[int, float]:
    """The paper's, which does not say how frequencies are laid out over the heads: they stand beside both layouts."""
    scheme, options = scheme_and_options(variant)
    # A search for settings scores other text than the paper did.
    same_text = results["corpus"]["name"] == "shakespeare" and not results["corpus"].get("search_share")
    alike = same_text and results["config"]["length"] == PAPER_LENGTHS[0] and set(options) <= {"frequencies"}
    return PAPER.get(scheme, {}) if alike else {}


def length_table(
    results: Results, names: Sequence[str] | None = None, *, against_paper: bool = True, along: str = "characters read"
) -> Table:
    """Variants down, lengths across, the lowest of each column in bold, the paper's below ours."""
    curves = {name: curve(results, name) for name in names or variants(results)}
    across = [length for length in lengths(results) if any(length in found for found in curves.values())]
    columns = [compared({name: found[n] for name, found in curves.items() if n in found}) for n in across]
    counts = {name: str(len(runs(results, name))) for name in curves}
    differ = len(set(counts.values())) > 1
    rows = []
    for name in curves:
        seeds = [Cell(counts[name])] if differ else []
        rows.append([Cell(name), *seeds, *(column.get(name, Cell("")) for column in columns)])
        theirs = paper_curve(results, name) if against_paper else {}
        if set(theirs) & set(across):
            rows.append([Cell("paper", "paper"), *[Cell("")] * differ, *(paper(theirs.get(n)) for n in across)])
    head = [along, *["seeds"] * differ, *(f"{length:,}" for length in across)]
    caption = f"Perplexity by {along}, lower is better; trained on windows of {results['config']['length']:,}."
    return Table(head, rows, BY_LENGTH, caption)


def curve_figure(results: Results, *, against_paper: bool = True, along: str = "characters read") -> Plot | None:
    """Perplexity by length and, where others run away, a close-up of the curves that stay low."""
    once = results["config"].get("once") or ()  # read with one seed alone: other text
    across = [length for length in lengths(results) if length not in once]
    curves = {name: drawing.finite({n: curve(results, name).get(n) for n in across}) for name in variants(results)}
    papers = {
        name: {n: value for n, value in paper_curve(results, name).items() if n in across and against_paper}
        for name in curves
    }
    panels = _panels(curves, papers)
    if not panels:
        return None
    shares = {"height_ratios": [2.3, 2.9]} if len(panels) > 1 else {}
    figure, all_axes, styles = drawing.lines(
        [curves] * len(panels),
        5.2 if len(panels) > 1 else 3.6,
        paper=any(papers.values()),
        rows=len(panels),
        sharex=True,
        gridspec_kw=shares,
    )
    firsts = {scheme_and_options(name)[0]: name for name in reversed(styles)}.values()
    for axes, (low, high), words in zip(all_axes, panels, ("perplexity", "perplexity, close up"), strict=False):
        for name in firsts:  # a second layout of frequencies has the same numbers in the paper
            axes.plot(list(papers[name]), list(papers[name].values()), **styles[name].drawn(hollow=True))
        drawing.log_lengths(axes, across)
        drawing.log_values(axes, low, high)
        drawing.mark(axes, results["config"]["length"], "training length" if axes is all_axes[0] else "")
        axes.set_ylabel(words)
    all_axes[-1].set_xlabel(along)
    return Plot("curve", BY_LENGTH, f"Perplexity against {along}, one line per variant.", figure)


def _panels(
    curves: Mapping[str, Mapping[float, Measured]], papers: Mapping[str, Mapping[int, float]]
) -> list[tuple[float, float]]:
    """The range of each panel: everything, then the curves that stay low if others do not."""
    heights = {
        name: [*(v.mean for v in found.values()), *papers.get(name, {}).values()] for name, found in curves.items()
    }
    everything = [value for found in heights.values() for value in found]
    if not everything:
        return []
    low, high = min(everything), max(everything)
    level = [max(found) for found in heights.values() if found and max(found) <= LEVEL * low]
    return [(low, high), *([(low, max(level))] if len(level) > 1 and high > CROWDED * low else [])]


# --- by position in the window -------------------------------------------------------------------------------------


def position_curves(results: Results) -> tuple[list[int], dict[str, list[Measured]]]:
    """Edges of the bins, and perplexity in each bin by variant; runs with other bins are left out."""
    parts = {name: [part for part in values(results, name, "by_position") if part] for name in variants(results)}
    edges: list[int] = next((found[0]["edges"] for found in parts.values() if found), [])
    alike = {name: [part["perplexity"] for part in found if part["edges"] == edges] for name, found in parts.items()}
    curves = {name: [measured(bins) for bins in zip(*found, strict=True)] for name, found in alike.items() if found}
    return edges, curves


def position_table(results: Results) -> Table | None:
    """A few bins from the first to the last."""
    edges, curves = position_curves(results)
    if not curves:
        return None
    last = len(edges) - 2
    shown = sorted({round(place * last / (BINS_SHOWN - 1)) for place in range(BINS_SHOWN)})
    head = ["position", *(f"{edges[place]:,} to {edges[place + 1] - 1:,}" for place in shown)]
    rows = [[Cell(name), *(Cell(number(found[place].mean)) for place in shown)] for name, found in curves.items()]
    caption = f"Perplexity by position in windows of {edges[-1]:,}, mean over seeds: does reading on help?"
    return Table(head, rows, BY_POSITION, caption)


def position_figure(results: Results) -> Plot | None:
    edges, by_name = position_curves(results)
    middles = [(left + right) / 2 for left, right in pairwise(edges)]
    curves = {name: drawing.finite(dict(zip(middles, found, strict=True))) for name, found in by_name.items()}
    panels = _panels(curves, {})
    if not panels:
        return None
    figure, (axes,), _ = drawing.lines([curves], 3.2)
    drawing.log_lengths(axes, edges[1:], begin=middles[0])
    drawing.log_values(axes, *panels[0])
    drawing.mark(axes, results["config"]["length"], "training length")
    axes.set(xlabel="position in the window", ylabel="perplexity")
    return Plot("positions", BY_POSITION, "Perplexity by position in the window, one line per variant.", figure)


# --- use of distant text -------------------------------------------------------------------------------------------


def distant_table(results: Results, kind: str = "characters") -> Table | None:
    """Perplexity with the text as written, and its change, seed by seed, when the distant text is tampered with."""
    treatments = [name for name in keys(results, "distant", "perplexity") if name != AS_WRITTEN]
    rows = []
    for name in variants(results):
        if parts := [part for part in values(results, name, "distant") if part]:
            plain = measured([part["perplexity"][AS_WRITTEN] for part in parts])
            changes = [measured([_change(part["perplexity"], treatment) for part in parts]) for treatment in treatments]
            rows.append([Cell(name), Cell(plain.text()), *(Cell(percent(change, None)) for change in changes)])
            near, length, scored = parts[0]["near"], parts[0]["length"], parts[0]["scored"]
    if not rows:
        return None
    caption = (
        f"Perplexity of {scored:,} {kind} in the last units, at least {near:,} {kind}, of windows of "
        f"{length:,}, and its change when the units before them are in another order, missing, or from another text."
    )
    return Table(["distant text", AS_WRITTEN, *treatments], rows, DISTANT, caption)


def _change(perplexity: Mapping[str, float | None], treatment: str) -> float:
    before, after = perplexity[AS_WRITTEN], perplexity.get(treatment)
    return math.nan if before is None or after is None else 100 * (after / before - 1)
