"""Drawing that the pictures of all experiments share: axes, lines with error bars, hollow marks, a legend."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from contentrope.reports.looks import INK, Look
from contentrope.reports.measured import Measured
from contentrope.reports.read import COMMA_BETWEEN_OPTIONS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Line = Mapping[int, Measured] | Mapping[float, Measured]
"""Values by their place along an axis."""

LABEL_WIDTH = 24
LINE_HEIGHT, LINE_GAP = 0.155, 0.125
"""Of the legend, in inches."""
HOLLOW: dict[str, Any] = {"ls": "", "mfc": "none", "ms": 8, "mew": 1.2}


def new_figure(heights: Sequence[float], styles: Mapping[str, Look]) -> tuple[Figure, list[Axes]]:
    """Axes of these heights, or higher ones where the legend beside them has more lines."""
    figure = figure_beside_legend(sum(heights), list(styles))
    grid = figure.subplots(len(heights), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})
    return figure, list(grid[:, 0])


def figure_beside_legend(height: float, names: Sequence[str]) -> Figure:
    """A figure of this height, or as high as the legend of ``names`` beside it."""
    from matplotlib.figure import Figure

    legend = sum(LINE_HEIGHT * (label(name).count("\n") + 1) + LINE_GAP for name in names)
    return Figure(figsize=(8.4, max(height, legend) + 0.5), layout="constrained")


def draw_line(axes: Axes, points: Line, look: Look) -> None:
    means = [value.mean for value in points.values()]
    above = [value.spread or 0.0 for value in points.values()]
    below = [min(spread, 0.9 * mean) for spread, mean in zip(above, means, strict=True)]  # zero has no logarithm
    axes.errorbar(list(points), means, [below, above], capsize=2.5, elinewidth=1, **solid(look))


def solid(look: Look) -> dict[str, Any]:
    return _mark(look) | {"ls": look.line, "lw": look.width, "ms": 6 if look.width > 2 else 5}


def dot(look: Look) -> dict[str, Any]:
    return _mark(look) | {"ls": "", "ms": 6 if look.width > 2 else 5}


def hollow(look: Look) -> dict[str, Any]:
    return _mark(look) | HOLLOW


def _mark(look: Look) -> dict[str, Any]:
    return {"color": look.colour, "marker": look.marker, "zorder": 2 + look.order}


def add_legend(
    figure: Figure, styles: Mapping[str, Look], *, paper: bool, drawn: Callable[[Look], dict[str, Any]] = solid
) -> None:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], **drawn(look)) for look in styles.values()]
    names = [label(name) for name in styles]
    if paper:
        lines.append(Line2D([], [], color=INK, marker="o", **HOLLOW))
        names.append("hollow: the paper")
    place_legend(figure, lines, names)


def place_legend(figure: Figure, lines: Sequence[Line2D], names: Sequence[str]) -> None:
    legend = figure.legend(lines, names, loc="outside right center", fontsize=9, handlelength=3.2, labelspacing=0.8)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a dollar sign in a name is a dollar sign


def label(variant: str) -> str:
    """A name for the legend: options on lines of their own, only characters that every font has.

    >>> label("content:competition=1")
    'content\\ncompetition=1'
    """
    spaced = re.sub(rf"{COMMA_BETWEEN_OPTIONS}\s*", ", ", drawable(variant))
    lines = [line.strip() for part in spaced.split(":", 1) for line in wrap(part, LABEL_WIDTH)]
    return "\n".join(line.rstrip(",") for line in lines)


def drawable(text: str) -> str:
    """Only characters that every font has."""
    return "".join(sign if " " <= sign <= "~" else "?" for sign in text)
