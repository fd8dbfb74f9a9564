"""What the pictures show: lines with error bars, the paper's points, and a close-up where lines crowd."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from contentrope.reports.axes import set_ticks
from contentrope.reports.details import position_curves
from contentrope.reports.looks import FAINT, INK, Look, looks
from contentrope.reports.measured import Measured
from contentrope.reports.paper import paper_curve
from contentrope.reports.read import (
    COMMA_BETWEEN_OPTIONS,
    Results,
    curve,
    lengths_to_compare,
    scheme_and_options,
    training_length,
    variants_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = Mapping[float, Measured]

CROWDED, LEVEL = 2.0, 1.4
"""A close-up shows the curves that stay within LEVEL of the lowest value, if others pass CROWDED times it."""

LABEL_WIDTH = 24
LINE_HEIGHT, LINE_GAP = 0.155, 0.125
"""Of the legend, in inches."""
HOLLOW: dict[str, Any] = {"ls": "", "mfc": "none", "ms": 8, "mew": 1.2}


def curve_figure(results: Results) -> Figure | None:
    """Perplexity by length; None without a finite number."""
    lengths = lengths_to_compare(results)
    curves = {name: _compared(results, name, lengths) for name in variants_of(results)}
    papers = {name: {n: v for n, v in paper_curve(results, name).items() if n in lengths} for name in curves}
    panels = _panels(curves, papers)
    if not panels:
        return None
    styles = looks(list(curves))
    figure, all_axes = _new_figure([2.3, 2.9] if len(panels) > 1 else [3.6], styles)
    firsts = {scheme_and_options(name)[0]: name for name in reversed(styles) if papers[name]}.values()
    for axes, (low, high) in zip(all_axes, panels, strict=True):
        for name, look in styles.items():
            _draw_line(axes, curves[name], look)
            if name in firsts:  # a second layout of frequencies has the same numbers in the paper
                axes.plot(list(papers[name]), list(papers[name].values()), **_hollow(look))
        set_ticks(axes, lengths, low, high)
        axes.set_ylabel("perplexity" if axes is all_axes[0] else "perplexity, close up")
    _mark_training(all_axes, training_length(results))
    all_axes[-1].set_xlabel("characters read")
    _legend(figure, styles, paper=any(papers.values()))
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
    figure, (axes,) = _new_figure([3.2], styles)
    for name, look in styles.items():
        _draw_line(axes, curves[name], look)
    set_ticks(axes, edges[1:], *panels[0], begin=middles[0])
    axes.set_xlabel("position in the window")
    axes.set_ylabel("perplexity")
    _mark_training([axes], training_length(results))
    _legend(figure, styles, paper=False)
    return figure


def _compared(results: Results, variant: str, lengths: Sequence[int]) -> dict[float, Measured]:
    return _finite({length: value for length, value in curve(results, variant).items() if length in lengths})


def _finite(points: Mapping[int, Measured] | Mapping[float, Measured]) -> dict[float, Measured]:
    return {place: value for place, value in points.items() if math.isfinite(value.mean)}


def _panels(curves: Mapping[str, Points], papers: Mapping[str, Mapping[int, float]]) -> list[tuple[float, float]]:
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


def _new_figure(heights: Sequence[float], styles: Mapping[str, Look]) -> tuple[Figure, list[Axes]]:
    """Axes of these heights, or higher ones where the legend beside them has more lines."""
    from matplotlib.figure import Figure

    legend = sum(LINE_HEIGHT * (_label(name).count("\n") + 1) + LINE_GAP for name in styles)
    figure = Figure(figsize=(8.4, max(sum(heights), legend) + 0.5), layout="constrained")
    grid = figure.subplots(len(heights), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})
    return figure, list(grid[:, 0])


def _draw_line(axes: Axes, points: Points, look: Look) -> None:
    means = [value.mean for value in points.values()]
    above = [value.spread or 0.0 for value in points.values()]
    below = [min(spread, 0.9 * mean) for spread, mean in zip(above, means, strict=True)]  # zero has no logarithm
    axes.errorbar(list(points), means, [below, above], capsize=2.5, elinewidth=1, **_solid(look))


def _solid(look: Look) -> dict[str, Any]:
    return _mark(look) | {"ls": look.line, "lw": look.width, "ms": 6 if look.width > 2 else 5}


def _hollow(look: Look) -> dict[str, Any]:
    return _mark(look) | HOLLOW


def _mark(look: Look) -> dict[str, Any]:
    return {"color": look.colour, "marker": look.marker, "zorder": 2 + look.order}


def _mark_training(all_axes: Sequence[Axes], length: int | None) -> None:
    left, right = all_axes[0].get_xlim()
    if length is None or not left <= length <= right:
        return
    for axes in all_axes:
        axes.axvline(length, color=FAINT, lw=1, ls=":", zorder=1)
    along_x_within_y = all_axes[0].get_xaxis_transform()
    all_axes[0].text(length, 1.02, f"training length {length:,}", transform=along_x_within_y, fontsize=9)


def _legend(figure: Figure, styles: Mapping[str, Look], *, paper: bool) -> None:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], **_solid(look)) for look in styles.values()]
    names = [_label(name) for name in styles]
    if paper:
        lines.append(Line2D([], [], color=INK, marker="o", **HOLLOW))
        names.append("hollow: the paper")
    legend = figure.legend(lines, names, loc="outside right center", fontsize=9, handlelength=3.2, labelspacing=0.8)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a dollar sign in a name is a dollar sign


def _label(variant: str) -> str:
    """A name for the legend: options on lines of their own, only characters that every font has.

    >>> _label("content:competition=1")
    'content\\ncompetition=1'
    """
    safe = "".join(sign if " " <= sign <= "~" else "?" for sign in variant)
    spaced = re.sub(rf"{COMMA_BETWEEN_OPTIONS}\s*", ", ", safe)
    lines = [line.strip() for part in spaced.split(":", 1) for line in wrap(part, LABEL_WIDTH)]
    return "\n".join(line.rstrip(",") for line in lines)
