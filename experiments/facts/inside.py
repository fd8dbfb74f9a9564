"""A look inside: which unit each scored character attends to, and a map of the addresses of some facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments import drawing
from experiments.drawing import FAINT, Plot, Style
from experiments.facts.generator.words import DOMAINS
from experiments.results import Results, values, variants

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE = "A look inside"
CELL = 0.16
"""Inches a unit takes in height."""
SHADE, MARK, LEVELS = "#0072b2", "#d55e00", 10
ABREAST = 2
"""Maps side by side."""
DOMAIN_OF = {role: domain for domain, roles in DOMAINS.items() for role in roles}


def _first(results: Results, part: str) -> dict[str, Results]:
    """By variant, this part of the first run that has it."""
    found = {name: [one for one in values(results, name, part) if one] for name in variants(results)}
    return {name: parts[0] for name, parts in found.items() if parts}


def attention_figure(results: Results) -> Plot | None:
    """A line of panels for each variant, a panel for each layer; all variants read the same example."""
    found = _first(results, "inside")
    if not found:
        return None
    example = next(iter(found.values()))
    units, layers = example["unit_texts"], len(example["attention"])
    height = len(found) * (CELL * len(units) + 0.5) + 0.3
    figure, panels = drawing.canvas(height, [], rows=len(found), columns=layers, sharex=True, sharey=True)
    for at, (name, inside) in enumerate(found.items()):
        for layer, axes in enumerate(panels[at * layers : (at + 1) * layers]):
            shades = _draw_layer(axes, inside, inside["attention"][layer])
            if at == 0:
                axes.set_title(f"layer {layer + 1}", fontsize=10)
        panels[at * layers].set_ylabel(drawing.label(name), rotation=0, ha="right", va="center", fontsize=9, labelpad=8)
    figure.colorbar(shades, ax=panels, label="share of attention", ticks=[0, 0.5, 1], shrink=0.6, aspect=16)
    texts = " ".join(f"{number}: {text.strip()}" for number, text in enumerate(units, start=1))
    caption = (
        "The share of its attention that each character asked for (across) pays to each unit (down), by layer and "
        f"variant. Framed: the fact that is asked for, {example['asked'] + 1}. The text: {texts}"
    )
    return Plot("attention", TITLE, caption, figure)


def _draw_layer(axes: Axes, inside: Results, by_character: Sequence[Sequence[float]]) -> Any:
    from matplotlib.colors import ListedColormap, to_rgba
    from matplotlib.patches import Rectangle

    # From nothing to the full colour, so that the ground shows through, whatever the page's is.
    colours = ListedColormap([to_rgba(SHADE, level / (LEVELS - 1)) for level in range(LEVELS)])
    characters = [inside["tokens"][at].strip() or "_" for at in inside["scored"]]
    by_unit = list(zip(*by_character, strict=True))
    shades = axes.pcolormesh(by_unit, cmap=colours, vmin=0, vmax=1, edgecolors=FAINT, linewidth=0.3)
    axes.grid(visible=False)
    axes.set_ylim(len(by_unit), 0)
    axes.set_xticks([at + 0.5 for at in range(len(characters))], [drawing.label(sign) for sign in characters])
    axes.set_yticks([at + 0.5 for at in range(len(by_unit))], [str(at + 1) for at in range(len(by_unit))], fontsize=8)
    axes.tick_params(length=0)
    asked = (0, inside["asked"])
    axes.add_patch(Rectangle(asked, len(characters), 1, fill=False, ec=MARK, lw=1.5, clip_on=False, zorder=3))
    return shades


def address_figure(results: Results) -> Plot | None:
    """One mark a fact, coloured by the domain of its relation."""
    found = _first(results, "addresses")
    if not found:
        return None
    relations = dict.fromkeys(relation for addresses in found.values() for relation in addresses["relations"])
    domains = {relation: DOMAIN_OF.get(relation.split(", ")[0], relation) for relation in relations}
    colours = [*drawing.OWN_COLOURS.values(), *drawing.COLOURS]
    styles = {
        name: Style(colours[at % len(colours)], drawing.MARKERS[at % len(drawing.MARKERS)], "", bold=False, order=0)
        for at, name in enumerate(dict.fromkeys(domains.values()))
    }
    rows = -(-len(found) // ABREAST)
    figure, panels = drawing.canvas(3.2 * rows, list(styles), rows=rows, columns=min(len(found), ABREAST))
    for axes, (name, addresses) in zip(panels, found.items(), strict=False):
        _draw_addresses(axes, addresses, {relation: styles[domain] for relation, domain in domains.items()})
        axes.set_title(drawing.label(name), fontsize=9)
    for axes in panels[len(found) :]:
        axes.set_axis_off()
    drawing.legend(figure, styles, line=False)
    caption = "Addresses of some facts, on the two directions in which they differ most; one mark a fact."
    return Plot("addresses", TITLE, caption, figure)


def _draw_addresses(axes: Axes, addresses: Results, styles: Mapping[str, Style]) -> None:
    points, relations = addresses["points"], addresses["relations"]
    for name in dict.fromkeys(relations):
        own = [point for point, relation in zip(points, relations, strict=True) if relation == name]
        axes.plot(*zip(*own, strict=True), **styles[name].drawn(line=False) | {"ms": 3.5, "mew": 0, "alpha": 0.75})
    shares = [f" ({share:.0%} of the variance)" for share in addresses.get("explained") or ()] or ["", ""]
    axes.set(xticks=[], yticks=[], xlabel=f"first direction{shares[0]}", ylabel=f"second direction{shares[1]}")
