"""What the pictures show: hit@5 by row, and by the number of distractors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from contentrope.reports.axes import legible
from contentrope.reports.drawing import add_legend, dot, draw_line, figure_beside_legend, hollow
from contentrope.reports.facts.addresses import address_figures
from contentrope.reports.facts.inside import inside_figures
from contentrope.reports.facts.losses import LOSSES, loss_figure
from contentrope.reports.facts.paper import paper_scores
from contentrope.reports.facts.rows import CONDITIONS, KINDS, NAMES, row_of, scores
from contentrope.reports.facts.scaling import ENOUGH, by_distractors, distractor_counts
from contentrope.reports.looks import FAINT, INK, Look, looks
from contentrope.reports.measured import Measured
from contentrope.reports.read import Results, variants_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HITS, SCALING = "hits", "scaling"
"""The stems of the pictures' files."""
Value = TypeVar("Value", float, Measured)
GROUPS = [(condition, kind) for condition in CONDITIONS for kind in KINDS]
LANE, LEAST_GROUP = 0.125, 0.45
"""Inches for each variant within a group, and for a group at least."""
QUARTERS = (0, 0.25, 0.5, 0.75, 1)
FIFTHS = (0, 0.2, 0.4, 0.6, 0.8, ENOUGH, 1)
FILLED = 0.8
"""The share of a group's height that its marks take."""


def figures(results: Results) -> dict[str, Figure | None]:
    found = {HITS: hit_figure(results), SCALING: scaling_figure(results), LOSSES: loss_figure(results)}
    return {**found, **inside_figures(results), **address_figures(results)}


# --- hit@5 by row --------------------------------------------------------------------------------------------------


def hit_figure(results: Results) -> Figure | None:
    """Hit@5 of every variant: conditions and kinds down, seen and unseen names side by side."""
    found = {name: scores(results, name) for name in variants_of(results)}
    if not any(found.values()):
        return None
    styles = looks(list(found))
    height = len(GROUPS) * max(LANE * len(styles), LEAST_GROUP)
    figure = figure_beside_legend(height + 0.3, list(styles))
    panels = figure.subplots(1, len(NAMES), sharex=True, sharey=True)
    papers = {name: paper_scores(results, name) for name in styles}
    for axes, (names, title) in zip(panels, NAMES.items(), strict=True):
        _draw_groups(axes)
        axes.set_title(title, fontsize=10)
        for place, (name, look) in enumerate(styles.items()):
            lane = FILLED * ((place + 0.5) / len(styles) - 0.5)
            _draw_dots(axes, _by_place(found[name], names, lane), look)
            printed = _by_place(papers[name], names, lane)
            axes.plot(list(printed.values()), list(printed), **hollow(look))
    add_legend(figure, styles, paper=any(papers.values()), drawn=dot)
    return figure


def _by_place(by_row: Mapping[str, Value], names: str, lane: float) -> dict[float, Value]:
    rows = [row_of(*group, names) for group in GROUPS]
    return {place + lane: by_row[row] for place, row in enumerate(rows) if row in by_row}


def _draw_groups(axes: Axes) -> None:
    axes.set(xlim=(-0.03, 1.03), ylim=(len(GROUPS) - 0.5, -0.5), xlabel="hit@5")
    axes.set_yticks(range(len(GROUPS)), [f"{condition}\n{kind}" for condition, kind in GROUPS])
    axes.tick_params(axis="y", length=0)
    axes.set_xticks(QUARTERS, [f"{quarter:g}" for quarter in QUARTERS])
    axes.grid(visible=False, axis="y")
    for place in range(0, len(GROUPS), 2):
        axes.axhspan(place - 0.5, place + 0.5, color=FAINT, alpha=0.12, lw=0, zorder=0)
    for place in range(len(KINDS), len(GROUPS), len(KINDS)):
        axes.axhline(place - 0.5, color=INK, lw=0.8, zorder=1)


def _draw_dots(axes: Axes, by_place: Mapping[float, Measured], look: Look) -> None:
    means = [value.mean for value in by_place.values()]
    spreads = [value.spread or 0.0 for value in by_place.values()]
    below = [min(spread, mean) for spread, mean in zip(spreads, means, strict=True)]  # no share is beyond 0 or 1
    above = [min(spread, 1 - mean) for spread, mean in zip(spreads, means, strict=True)]
    axes.errorbar(means, list(by_place), xerr=[below, above], capsize=2, elinewidth=1, **dot(look))


# --- more distractors ----------------------------------------------------------------------------------------------


def scaling_figure(results: Results) -> Figure | None:
    """Hit@5 by the number of distractors; None where it was not measured."""
    counts = distractor_counts(results)
    if not counts:
        return None
    curves = {kind: {name: by_distractors(results, name, kind) for name in variants_of(results)} for kind in KINDS}
    styles = looks([name for name in variants_of(results) if any(curves[kind][name] for kind in KINDS)])
    figure = figure_beside_legend(3.4, list(styles))
    panels = figure.subplots(1, len(KINDS), sharey=True)
    for axes, kind in zip(panels, KINDS, strict=True):
        for name, look in styles.items():
            draw_line(axes, curves[kind][name], look)
        axes.set(xscale="log", ylim=(-0.03, 1.03), xlabel="distractors", xlim=(counts[0] / 1.2, counts[-1] * 1.2))
        axes.set_title(kind, fontsize=10)
        axes.set_xticks(legible(counts), [f"{count:,}" for count in legible(counts)])
        axes.minorticks_off()
        axes.axhline(ENOUGH, color=FAINT, lw=1, ls=":", zorder=1)
    panels[0].set_ylabel("hit@5")
    panels[0].set_yticks(FIFTHS, [f"{tick:g}" for tick in FIFTHS])
    add_legend(figure, styles, paper=False)
    return figure
