"""The picture: overhead by row, a panel per acceleration, the paper's as hollow marks, targets as short lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from contentrope.reports.drawing import add_legend, dot, drawable, hollow, new_figure
from contentrope.reports.looks import FAINT, INK, Look, looks
from contentrope.reports.measured import Measured
from contentrope.reports.read import Results, variants_of
from contentrope.reports.timing.paper import REPEATED, printed_overhead, target
from contentrope.reports.timing.read import accelerations_of, overheads, schemes_of
from contentrope.reports.timing.words import sentence

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OVERHEADS = "overheads"
"""The stem of the picture's file."""
PANEL = 2.2
"""Inches."""
LANES = 0.6
"""The share of a row's width that its marks take."""
TARGET = 0.38
"""Half the width of a target's line."""


def figures(results: Results) -> dict[str, Figure | None]:
    return {OVERHEADS: overhead_figure(results)}


def overhead_figure(results: Results) -> Figure | None:
    """Overhead by row; None where nothing could be compared."""
    schemes, rows = schemes_of(results), variants_of(results)
    panels = {
        acceleration: {scheme: overheads(results, acceleration, scheme) for scheme in schemes}
        for acceleration in accelerations_of(results)
    }
    panels = {acceleration: found for acceleration, found in panels.items() if any(found.values())}
    if not panels:
        return None
    styles = looks(schemes)
    figure, all_axes = new_figure([PANEL] * len(panels), styles)
    for axes, (acceleration, found) in zip(all_axes, panels.items(), strict=True):
        _prepare(axes, rows, f"{sentence(acceleration)}: overhead, %{_meaning_of_lines(results)}")
        for lane, (scheme, look) in zip(_lanes(len(styles)), styles.items(), strict=True):
            _draw(axes, {rows.index(row) + lane: value for row, value in found[scheme].items()}, look)
        _draw_told(axes, results, rows, styles.get(REPEATED) or next(iter(styles.values())))
    add_legend(figure, styles, paper=any(printed_overhead(row) is not None for row in rows), drawn=dot)
    return figure


def _meaning_of_lines(results: Results) -> str:
    return " (dashed: target)" if any(target(results, row) is not None for row in variants_of(results)) else ""


def _lanes(count: int) -> list[float]:
    """Places of the schemes beside each other, the middle of a row being 0."""
    return [LANES * ((place + 0.5) / count - 0.5) for place in range(count)]


def _prepare(axes: Axes, rows: Sequence[str], title: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlim(-0.5, len(rows) - 0.5)
    axes.set_xticks(range(len(rows)), [drawable(row).replace(" at ", "\nat ") for row in rows])
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    axes.axhline(0, color=INK, lw=0.8, zorder=1)
    for place in range(0, len(rows), 2):
        axes.axvspan(place - 0.5, place + 0.5, color=FAINT, alpha=0.12, lw=0, zorder=0)


def _draw(axes: Axes, by_place: dict[float, Measured], look: Look) -> None:
    means = [value.mean for value in by_place.values()]
    spreads = [value.spread or 0.0 for value in by_place.values()]
    axes.errorbar(list(by_place), means, spreads, capsize=2, elinewidth=1, **dot(look))


def _draw_told(axes: Axes, results: Results, rows: Sequence[str], look: Look) -> None:
    """What the paper has, and what is to be reached."""
    for place, row in enumerate(rows):
        theirs, most = printed_overhead(row), target(results, row)
        if theirs is not None:
            axes.plot([place], [theirs], **hollow(look))
        if most is not None:
            axes.plot([place - TARGET, place + TARGET], [most, most], color=INK, lw=1, ls="--", zorder=1)
