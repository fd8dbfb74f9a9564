"""A look inside: which unit each scored character attends to, and a map of the addresses of some facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments import drawing
from experiments.drawing import FAINT, Look, Plot
from experiments.results import Results, values, variants

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE = "A look inside"
MOST_UNITS, MOST_CHARACTERS, MOST_IN_LEGEND = 24, 48, 12
"""That a picture has room for."""
CELL = 0.16
"""Inches a unit takes in height."""
SHADE, MARK, LEVELS = "#0072b2", "#d55e00", 10
ABREAST = 2
"""Maps side by side."""


def _first(results: Results, part: str) -> dict[str, Results]:
    """By variant, this part of the first run that has it."""
    found = {name: [one for one in values(results, name, part) if one] for name in variants(results)}
    return {name: parts[0] for name, parts in found.items() if parts}


# --- attention -----------------------------------------------------------------------------------------------------


def attention_figures(results: Results) -> list[Plot]:
    """A figure for each example, a line of panels for each variant that read it, a panel for each layer."""
    by_example: dict[str, dict[str, Results]] = {}
    for name, inside in _first(results, "inside").items():
        example = repr([inside["tokens"], inside["scored"], inside["asked"], len(inside["attention"])])
        by_example.setdefault(example, {})[name] = inside
    return [_attention_figure(place, readers) for place, readers in enumerate(by_example.values(), 1)]


def _attention_figure(place: int, readers: Mapping[str, Results]) -> Plot:
    example = next(iter(readers.values()))
    units = _units_shown(example, [inside["attention"] for inside in readers.values()])
    layers = len(example["attention"])
    height = len(readers) * (CELL * len(units) + 0.5) + 0.3
    figure, panels = drawing.canvas(height, [], rows=len(readers), columns=layers, sharex=True, sharey=True)
    for at, (name, inside) in enumerate(readers.items()):
        for layer, axes in enumerate(panels[at * layers : (at + 1) * layers]):
            shades = _draw_layer(axes, inside, inside["attention"][layer], units)
            if at == 0:
                axes.set_title(f"layer {layer + 1}", fontsize=10)
        panels[at * layers].set_ylabel(drawing.label(name), rotation=0, ha="right", va="center", fontsize=9, labelpad=8)
    figure.colorbar(shades, ax=panels, label="share of attention", ticks=[0, 0.5, 1], shrink=0.6, aspect=16)
    texts = [f"{unit + 1}: {example['unit_texts'][unit].strip()}" for unit in units]
    caption = (
        "The share of its attention that each character asked for (across) pays to each unit (down), by layer and "
        f"variant. Framed: the fact that is asked for, {example['asked'] + 1}. The text: {' '.join(texts)}"
    )
    return Plot(f"attention-{place}" if place > 1 else "attention", TITLE, caption, figure)


def _units_shown(example: Results, attention: Sequence[Sequence[Sequence[Sequence[float]]]]) -> list[int]:
    """All units, or the one asked for and those that get most attention anywhere."""
    count = range(len(example["unit_texts"]))
    most = [max(line[unit] for layers in attention for layer in layers for line in layer) for unit in count]
    return sorted(sorted(count, key=lambda unit: (unit != example["asked"], -most[unit]))[:MOST_UNITS])


def _draw_layer(axes: Axes, inside: Results, layer: Sequence[Sequence[float]], units: Sequence[int]) -> Any:
    from matplotlib.colors import ListedColormap, to_rgba
    from matplotlib.patches import Rectangle

    # From nothing to the full colour, so that the ground shows through, whatever the page's is.
    colours = ListedColormap([to_rgba(SHADE, level / (LEVELS - 1)) for level in range(LEVELS)])
    characters = [inside["tokens"][at].strip() or "_" for at in inside["scored"][:MOST_CHARACTERS]]
    shares = [[line[unit] for line in layer[:MOST_CHARACTERS]] for unit in units]
    shades = axes.pcolormesh(shares, cmap=colours, vmin=0, vmax=1, edgecolors=FAINT, linewidth=0.3)
    axes.grid(visible=False)
    axes.set_ylim(len(units), 0)
    axes.set_xticks([at + 0.5 for at in range(len(characters))], [drawing.label(sign) for sign in characters])
    axes.set_yticks([at + 0.5 for at in range(len(units))], [str(unit + 1) for unit in units], fontsize=8)
    axes.tick_params(length=0)
    asked = units.index(inside["asked"])
    axes.add_patch(Rectangle((0, asked), len(characters), 1, fill=False, ec=MARK, lw=1.5, clip_on=False, zorder=3))
    return shades


# --- addresses -----------------------------------------------------------------------------------------------------


def address_figure(results: Results) -> Plot | None:
    """One mark a fact, coloured by relation or, where there are many, by roles that go together."""
    found = _first(results, "addresses")
    if not found:
        return None
    relations = dict.fromkeys(relation for addresses in found.values() for relation in addresses["relations"])
    groups = {name: name for name in relations} if len(relations) <= MOST_IN_LEGEND else domains_of(list(relations))
    names = list(dict.fromkeys(groups.values()))
    colours = [*drawing.OWN_COLOURS.values(), *drawing.COLOURS]
    styles = {
        name: Look(colours[at % len(colours)], drawing.MARKERS[at % len(drawing.MARKERS)], "", bold=False, order=0)
        for at, name in enumerate(names)
    }
    rows = -(-len(found) // ABREAST)
    shown = styles if len(names) <= MOST_IN_LEGEND else {}
    figure, panels = drawing.canvas(3.2 * rows, list(shown), rows=rows, columns=min(len(found), ABREAST))
    for axes, (name, addresses) in zip(panels, found.items(), strict=False):
        _draw_addresses(axes, addresses, {relation: styles[groups[relation]] for relation in groups})
        axes.set_title(drawing.label(name), fontsize=9)
    for axes in panels[len(found) :]:
        axes.set_axis_off()
    drawing.legend(figure, shown, line=False)
    caption = "Addresses of some facts, on the two directions in which they differ most; one mark a fact."
    return Plot("addresses", TITLE, caption, figure)


def domains_of(relations: Sequence[str]) -> dict[str, str]:
    """By relation: the roles of its domain, which are all that some chain of relations connects with its own.

    >>> domains_of(["son, father", "father, grandfather", "deacon, priest"])["son, father"]
    'son, father, grandfather'
    """
    domains: list[list[str]] = []
    for relation in relations:
        roles = relation.split(", ")
        apart = [domain for domain in domains if not set(domain) & set(roles)]
        joined = [role for domain in domains if domain not in apart for role in domain]
        domains = [*apart, list(dict.fromkeys([*joined, *roles]))]
    named = {role: ", ".join(domain) for domain in domains for role in domain}
    return {relation: named[relation.split(", ")[0]] for relation in relations}


def _draw_addresses(axes: Axes, addresses: Results, styles: Mapping[str, Look]) -> None:
    points, relations = addresses["points"], addresses["relations"]
    for name in dict.fromkeys(relations):
        own = [point for point, relation in zip(points, relations, strict=True) if relation == name]
        axes.plot(*zip(*own, strict=True), **styles[name].drawn(line=False) | {"ms": 3.5, "mew": 0, "alpha": 0.75})
    shares = [f" ({share:.0%} of the variance)" for share in addresses.get("explained") or ()] or ["", ""]
    axes.set(xticks=[], yticks=[], xlabel=f"first direction{shares[0]}", ylabel=f"second direction{shares[1]}")
