"""A look inside: which unit each scored character attends to, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from contentrope.reports.drawing import drawable
from contentrope.reports.looks import FAINT
from contentrope.reports.read import Results, parts_of, variants_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STEM = "inside"
MOST_UNITS, MOST_CHARACTERS, LONGEST_TEXT = 24, 48, 100
"""That a picture has room for."""
CELL = 0.2
"""Inches a unit takes in height, and a character in width at least."""
TEXT_LINE = 0.17
SHADE, MARK = "#0072b2", "#d55e00"
LEVELS = 10
ABREAST = 3
"""Panels side by side."""


def examples(results: Results) -> dict[str, tuple[str, Results]]:
    """By the stem of its picture: the variant and its example, that of the first run which has one."""
    found = [(name, parts[0]) for name in variants_of(results) if (parts := parts_of(results, name, "inside"))]
    return {stem_of(STEM, place): example for place, example in enumerate(found)}


def stem_of(stem: str, place: int) -> str:
    return stem if place == 0 else f"{stem}-{place + 1}"


def units_in_words(inside: Results) -> list[str]:
    """The units of the example in order, numbered, the one asked for marked."""
    asked = inside["asked"]
    return [f"{_number(at, asked)}: {text}" for at, text in enumerate(inside["unit_texts"])]


def _number(unit: int, asked: int) -> str:
    return f"{unit + 1} (asked)" if unit == asked else str(unit + 1)


def inside_figures(results: Results) -> dict[str, Figure | None]:
    return {stem: _figure(name, inside) for stem, (name, inside) in examples(results).items()}


def _figure(variant: str, inside: Results) -> Figure:
    from matplotlib.figure import Figure

    units, layers = _units_shown(inside), inside["attention"]
    abreast = min(len(layers), ABREAST)
    lines = -(-len(layers) // abreast)
    panel, text = CELL * len(units) + 0.75, TEXT_LINE * (len(units) + 1)
    figure = Figure(figsize=(8.4, text + lines * panel), layout="constrained")
    grid = figure.add_gridspec(1 + lines, abreast, height_ratios=[text, *[panel] * lines])
    _write_units(figure.add_subplot(grid[0, :]), variant, inside, units)
    panels = [figure.add_subplot(grid[1 + at // abreast, at % abreast]) for at in range(len(layers))]
    for at, axes in enumerate(panels):
        shades = _draw_layer(axes, inside, layers[at], units)
        axes.set_title(f"layer {at + 1}", fontsize=10)
        if at % abreast == 0:
            axes.set_ylabel("unit")
    figure.colorbar(shades, ax=panels, label="share of attention", shrink=0.9, aspect=12, ticks=[0, 0.5, 1])
    return figure


def _units_shown(inside: Results) -> list[int]:
    """All units, or the one asked for and those that get most attention anywhere."""
    asked, count = inside["asked"], len(inside["unit_texts"])
    most = [max(line[unit] for layer in inside["attention"] for line in layer) for unit in range(count)]
    order = sorted(range(count), key=lambda unit: (unit != asked, -most[unit]))
    return sorted(order[:MOST_UNITS])


def _write_units(axes: Axes, variant: str, inside: Results, units: Sequence[int]) -> None:
    """The example's text, unit by unit."""
    axes.set_axis_off()
    axes.set(xlim=(0, 1), ylim=(len(units), -1))
    style: dict[str, Any] = {"fontsize": 8.5, "va": "center", "parse_math": False}
    axes.text(0, -0.5, f"{drawable(variant)} reads:", **style)
    for place, unit in enumerate(units):
        asked = unit == inside["asked"]
        words = f"{unit + 1:>3} {shorten(drawable(inside['unit_texts'][unit]), LONGEST_TEXT, placeholder=' ...')}"
        weight = "bold" if asked else "normal"
        words += "   (asked for)" if asked else ""
        axes.text(0, place + 0.5, words, family="monospace", weight=weight, **style)


def _draw_layer(axes: Axes, inside: Results, layer: Sequence[Sequence[float]], units: Sequence[int]) -> Any:
    from matplotlib.patches import Rectangle

    shown = layer[:MOST_CHARACTERS]
    characters = [drawable(inside["tokens"][at]).strip() or "_" for at in inside["scored"][:MOST_CHARACTERS]]
    shares = [[min(max(line[unit], 0.0), 1.0) for line in shown] for unit in units]
    shades = axes.pcolormesh(shares, cmap=_shades(), vmin=0, vmax=1, edgecolors=FAINT, linewidth=0.3)
    axes.grid(visible=False)
    axes.set_ylim(len(units), 0)
    axes.set_xticks([at + 0.5 for at in range(len(characters))], characters, parse_math=False)
    axes.set_yticks([at + 0.5 for at in range(len(units))], [str(unit + 1) for unit in units])
    axes.tick_params(length=0)
    asked = units.index(inside["asked"])
    axes.get_yticklabels()[asked].set_fontweight("bold")
    axes.add_patch(Rectangle((0, asked), len(characters), 1, fill=False, ec=MARK, lw=2, clip_on=False, zorder=3))
    return shades


def _shades() -> Any:
    """From nothing to the full colour, so that the ground shows through, whatever the page's is."""
    from matplotlib.colors import ListedColormap, to_rgba

    return ListedColormap([to_rgba(SHADE, level / (LEVELS - 1)) for level in range(LEVELS)])
