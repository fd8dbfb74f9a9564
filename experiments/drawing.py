"""Pictures in one style, readable on light and dark ground; a variant has the same style in all of them."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from experiments.results import COMMA_BETWEEN_OPTIONS, ResultError, scheme_and_options
from experiments.tables import Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, GROUND = "#1f2328", "#8b949e", "#ffffff"
# Okabe and Ito's colours, which colour-blind readers can tell apart; all are legible on light and on dark ground.
OWN_COLOURS = {"content": "#0072b2", "rope": "#d55e00", "alibi": "#009e73", "random": "#e69f00"}
COLOURS = (
    "#cc79a7", "#56b4e9", "#b5476f", "#7f7f7f", "#6a5acd", "#999933", "#44aa99", "#aa4499", "#a65628", "#6699cc",
    "#4d9a51", "#b8a33c", INK,
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
WIDTH, MARKS = 8.4, 8
"""Inches of a figure, and about how many marks a line of more points than twice that has."""
LABEL_WIDTH, LINE_HEIGHT, LINE_GAP = 24, 0.155, 0.125
"""Of the legend: characters, inches, inches."""
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text: small, searchable, in the reader's font
    "svg.hashsalt": "contentrope",  # otherwise every SVG gets new ids
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "figure.facecolor": GROUND,
    "axes.facecolor": "none",
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
}


@dataclass(frozen=True)
class Plot:
    name: str
    """The stem of its file."""
    title: str
    """Of the section it stands in."""
    caption: str
    figure: Figure


def style() -> AbstractContextManager[None]:
    """What figures are made and written in; nobody's own settings change them."""
    try:
        import matplotlib.style
    except ImportError as error:
        raise ResultError("figures need matplotlib: pip install contentrope[report]") from error
    return matplotlib.style.context(["default", STYLE])


def svg(figure: Figure) -> str:
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return file.getvalue().decode()


def inline(text: str, name: str) -> str:
    """An SVG as part of a page: in the page's own ink, and with ids that no other picture has."""
    text = re.sub(r'\s+xmlns(:xlink)?="[^"]*"', "", text[text.index("<svg") :].strip())
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    return text.replace(INK, "currentColor").replace(GROUND, "none")


# --- styles of variants --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Style:
    colour: str
    marker: str
    line: str
    bold: bool
    order: int

    def drawn(self, *, line: bool = True, hollow: bool = False) -> dict[str, Any]:
        """For ``plot``: a line with marks, marks alone, or hollow marks, which are the paper's."""
        shape = {"color": self.colour, "marker": self.marker, "zorder": 2 + self.order}
        if hollow:
            return shape | {"ls": "", "mfc": "none", "ms": 8, "mew": 1.2}
        return shape | {"ls": self.line if line else "", "lw": 2.6 if self.bold else 1.5, "ms": 6 if self.bold else 5}


def styles_of(variants: Sequence[str]) -> dict[str, Style]:
    """By variant, content first; one that differs in the layout of frequencies alone is dashed in its twin's colour."""
    ordered = sorted(variants, key=lambda name: scheme_and_options(name)[0] != "content")
    twins = {name: _twin(name) for name in ordered}
    plainest = sorted(dict.fromkeys(twins.values()), key=lambda name: ":" in name)
    own = {scheme: name for name in reversed(plainest) if (scheme := scheme_and_options(name)[0]) in OWN_COLOURS}
    others = [name for name in dict.fromkeys(twins.values()) if name not in own.values()]
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(others)}
    colours |= {name: OWN_COLOURS[scheme] for scheme, name in own.items()}
    return {
        name: Style(
            colour=colours[twins[name]],
            marker=MARKERS[place % len(MARKERS)],
            line="-" if twins[name] == name else "--",
            bold=scheme_and_options(name)[0] == "content",
            order=len(ordered) - place,
        )
        for place, name in enumerate(ordered)
    }


def _twin(variant: str) -> str:
    """The variant without its layout of frequencies."""
    scheme, options = scheme_and_options(variant)
    rest = ",".join(f"{name}={value}" for name, value in options.items() if name != "frequencies")
    return f"{scheme}:{rest}" if rest else scheme


# --- drawing -------------------------------------------------------------------------------------------------------


def canvas(
    height: float, names: Sequence[str], rows: int = 1, columns: int = 1, **how: Any
) -> tuple[Figure, list[Axes]]:
    """Axes of this height in all, or as high as the legend of ``names`` beside them."""
    from matplotlib.figure import Figure

    legend_height = sum(LINE_HEIGHT * (label(name).count("\n") + 1) + LINE_GAP for name in names)
    figure = Figure(figsize=(WIDTH, max(height, legend_height) + 0.5), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, **how).flat)


def draw(
    axes: Axes, points: Mapping[float, Measured], style: Style, *, line: bool = True, across: bool = False
) -> None:
    """Means with error bars, over their places or ``across`` beside them."""
    means, stds = [value.mean for value in points.values()], [value.std or 0.0 for value in points.values()]
    how = style.drawn(line=line) | {"capsize": 2.5 if any(stds) else 0, "elinewidth": 1}
    # Some marks tell lines apart without colour, all of them would hide a line.
    every = max(len(points) // MARKS, 1)
    how["markevery"] = (style.order % every, every)
    if across:
        axes.errorbar(means, list(points), xerr=stds, **how)
    else:
        axes.errorbar(list(points), means, yerr=stds, **how)


def lines(
    panels: Sequence[Mapping[str, Mapping[float, Measured]]], height: float, *, paper: bool = False, **how: Any
) -> tuple[Figure, list[Axes], dict[str, Style]]:
    """Curves by variant, on one or more axes, with one legend beside them."""
    styles = styles_of(list(panels[0]))
    figure, all_axes = canvas(height, list(styles), **how)
    for axes, curves in zip(all_axes, panels, strict=True):
        for name, style in styles.items():
            draw(axes, curves[name], style)
    legend(figure, styles, paper=paper)
    return figure, all_axes, styles


def legend(figure: Figure, styles: Mapping[str, Style], *, paper: bool = False, line: bool = True) -> None:
    from matplotlib.lines import Line2D

    marks = [Line2D([], [], **style.drawn(line=line)) for style in styles.values()]
    marks += [Line2D([], [], color=INK, marker="o", ls="", mfc="none", ms=8, mew=1.2)] if paper else []
    names = [*map(label, styles), *(["hollow: the paper"] if paper else [])]
    figure.legend(marks, names, loc="outside right center", fontsize=9, handlelength=3.2, labelspacing=0.8)


def label(variant: str) -> str:
    """A name for the legend: options on lines of their own.

    >>> label("content:competition=1")
    'content\\ncompetition=1'
    """
    spaced = " ".join(COMMA_BETWEEN_OPTIONS.sub(", ", drawable(variant)).split())
    lines = [line for part in spaced.split(":", 1) for line in wrap(part, LABEL_WIDTH, break_on_hyphens=False)]
    return "\n".join(line.rstrip(",") for line in lines)


def drawable(text: str) -> str:
    """Only characters that every font has."""
    return "".join(sign if " " <= sign <= "~" else "?" for sign in text)


def log_lengths(axes: Axes, lengths: Sequence[int], begin: float | None = None) -> None:
    """A logarithmic axis over the lengths, with those as ticks whose labels have room beside each other."""
    left, right = begin or lengths[0], lengths[-1]
    beyond = max((right / left) ** 0.04, 1.05)
    shown = [lengths[0]]
    for length in lengths[1:]:
        shown += [length] if length >= shown[-1] * (right / lengths[0]) ** (1 / 12) else []
    axes.set(xscale="log", xlim=(left / beyond, right * beyond))
    axes.set_xticks(shown, [f"{length:,}" for length in shown])
    axes.xaxis.minorticks_off()


def log_values(axes: Axes, low: float, high: float) -> None:
    """A logarithmic axis a little beyond these values, with plain round numbers as ticks."""
    from matplotlib.ticker import LogLocator, MaxNLocator, StrMethodFormatter

    beyond = max((high / low) ** 0.06, 1.01)
    axes.set(yscale="log", ylim=(low / beyond, high * beyond))
    axes.yaxis.set_major_locator(MaxNLocator(5) if high < 2 * low else LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    axes.yaxis.minorticks_off()


def bands(span: Callable[..., Any], count: int) -> None:
    """Every other row (``axhspan``) or column (``axvspan``) on faint ground."""
    for place in range(0, count, 2):
        span(place - 0.5, place + 0.5, color=FAINT, alpha=0.12, lw=0, zorder=0)


def finite(points: Mapping[Any, Measured | None]) -> dict[float, Measured]:
    """What can be drawn of a curve."""
    return {float(place): value for place, value in points.items() if value and math.isfinite(value.mean)}


def mark(axes: Axes, place: float, words: str = "") -> None:
    """A dotted line across an axis, with its name above."""
    left, right = axes.get_xlim()
    if left <= place <= right:
        axes.axvline(place, color=FAINT, lw=1, ls=":", zorder=1)
        if words:
            axes.text(place, 1.02, f"{words} {place:,}", transform=axes.get_xaxis_transform(), fontsize=9)
