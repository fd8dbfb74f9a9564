"""What the pictures show: lines with error bars, the paper's points, and a close-up where lines crowd."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from contentrope.reports.axes import set_ticks
from contentrope.reports.drawing import Line, add_legend, draw_line, hollow, new_figure
from contentrope.reports.growth.curves import curve, lengths_to_compare, training_length
from contentrope.reports.growth.details import position_curves
from contentrope.reports.growth.paper import paper_curve
from contentrope.reports.looks import FAINT, looks
from contentrope.reports.measured import Measured
from contentrope.reports.read import Results, scheme_and_options, variants_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVE, POSITIONS = "curve", "positions"
"""The stems of the pictures' files."""

CROWDED, LEVEL = 2.0, 1.4
"""A close-up shows the curves that stay within LEVEL of the lowest value, if others pass CROWDED times it."""


def figures(results: Results) -> dict[str, Figure | None]:
    return {CURVE: curve_figure(results), POSITIONS: position_figure(results)}


def curve_figure(results: Results, *, paper: bool = True, along: str = "characters read") -> Figure | None:
    """Perplexity by length; None without a finite number."""
    lengths = lengths_to_compare(results)
    curves = {name: _compared(results, name, lengths) for name in variants_of(results)}
    printed = {name: paper_curve(results, name) if paper else {} for name in curves}
    papers = {name: {n: v for n, v in values.items() if n in lengths} for name, values in printed.items()}
    panels = _panels(curves, papers)
    if not panels:
        return None
    styles = looks(list(curves))
    figure, all_axes = new_figure([2.3, 2.9] if len(panels) > 1 else [3.6], styles)
    firsts = {scheme_and_options(name)[0]: name for name in reversed(styles) if papers[name]}.values()
    for axes, (low, high) in zip(all_axes, panels, strict=True):
        for name, look in styles.items():
            draw_line(axes, curves[name], look)
            if name in firsts:  # a second layout of frequencies has the same numbers in the paper
                axes.plot(list(papers[name]), list(papers[name].values()), **hollow(look))
        set_ticks(axes, lengths, low, high)
        axes.set_ylabel("perplexity" if axes is all_axes[0] else "perplexity, close up")
    _mark_training(all_axes, training_length(results))
    all_axes[-1].set_xlabel(along)
    add_legend(figure, styles, paper=any(papers.values()))
    return figure


def position_figure(results: Results) -> Figure | None:
    """Perplexity by position in the window; None where it was not measured."""
    edges, by_name = position_curves(results)
    middles = [(left + right) / 2 for left, right in pairwise(edges)]
    curves = {name: _finite(dict(zip(middles, values, strict=True))) for name, values in by_name.items()}
    panels = _panels(curves, {})
    if not panels:
        return None
    styles = looks(list(curves))
    figure, (axes,) = new_figure([3.2], styles)
    for name, look in styles.items():
        draw_line(axes, curves[name], look)
    set_ticks(axes, edges[1:], *panels[0], begin=middles[0])
    axes.set_xlabel("position in the window")
    axes.set_ylabel("perplexity")
    _mark_training([axes], training_length(results))
    add_legend(figure, styles, paper=False)
    return figure


def _compared(results: Results, variant: str, lengths: Sequence[int]) -> dict[float, Measured]:
    return _finite({length: value for length, value in curve(results, variant).items() if length in lengths})


def _finite(points: Mapping[int, Measured] | Mapping[float, Measured]) -> dict[float, Measured]:
    return {place: value for place, value in points.items() if math.isfinite(value.mean)}


def _panels(curves: Mapping[str, Line], papers: Mapping[str, Mapping[int, float]]) -> list[tuple[float, float]]:
    """The range of perplexity of each panel: everything, then the curves that stay low if others do not."""
    values = {
        name: [*(value.mean for value in points.values()), *papers.get(name, {}).values()]
        for name, points in curves.items()
    }
    if not any(curves.values()):
        return []
    everything = [value for found in values.values() for value in found]
    low, high = min(everything), max(everything)
    level = [found for found in values.values() if found and max(found) <= LEVEL * low]
    close_up = [(low, max(map(max, level)))] if len(level) > 1 and high > CROWDED * low else []
    return [(low, high), *close_up]


def _mark_training(all_axes: Sequence[Axes], length: int | None) -> None:
    left, right = all_axes[0].get_xlim()
    if length is None or not left <= length <= right:
        return
    for axes in all_axes:
        axes.axvline(length, color=FAINT, lw=1, ls=":", zorder=1)
    along_x_within_y = all_axes[0].get_xaxis_transform()
    all_axes[0].text(length, 1.02, f"training length {length:,}", transform=along_x_within_y, fontsize=9)
