"""A look inside: a map of the addresses of some facts, near each other where the model gives like addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import dist
from statistics import median
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from contentrope.reports.drawing import LABEL_WIDTH, drawable, figure_beside_legend, place_legend
from contentrope.reports.facts.inside import stem_of
from contentrope.reports.looks import FAINT, GROUND, colours_and_markers
from contentrope.reports.read import Results, parts_of, variants_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Point = tuple[float, float]
STEM = "addresses"
MOST_IN_LEGEND = 12
TOGETHER = 0.25
"""The facts of a relation lie together if they are so much nearer to their centre than all facts are to theirs."""


def maps(results: Results) -> dict[str, tuple[str, Results]]:
    """By the stem of its picture: the variant and its map, that of the first run which has one."""
    found = [(name, parts[0]) for name in variants_of(results) if (parts := parts_of(results, name, "addresses"))]
    return {stem_of(STEM, place): one for place, one in enumerate(found)}


def domains_of(relations: Sequence[str]) -> dict[str, str]:
    """By relation: the roles of its domain, which are all that some chain of relations connects with its own.

    >>> domains_of(["son, father", "father, grandfather", "deacon, priest"])["son, father"]
    'son, father, grandfather'
    """
    domains: list[list[str]] = []
    for relation in dict.fromkeys(relations):
        roles = relation.split(", ")
        apart = [domain for domain in domains if not set(domain) & set(roles)]
        joined = [role for domain in domains if domain not in apart for role in domain]
        domains = [*apart, list(dict.fromkeys([*joined, *roles]))]
    named = {role: ", ".join(domain) for domain in domains for role in domain}
    return {relation: named[relation.split(", ")[0]] for relation in relations}


def address_figures(results: Results) -> dict[str, Figure | None]:
    return {stem: _figure(addresses) for stem, (_, addresses) in maps(results).items()}


def _figure(addresses: Results) -> Figure:
    relations = addresses["relations"]
    few = len(set(relations)) <= MOST_IN_LEGEND
    groups = {relation: relation for relation in relations} if few else domains_of(relations)
    names = list(dict.fromkeys(groups.values()))
    legend = names if len(names) <= MOST_IN_LEGEND else []
    figure = figure_beside_legend(5.6, legend)
    axes = figure.subplots()
    axes.set(**dict(zip(("xlabel", "ylabel"), _directions(addresses.get("explained")), strict=True)))
    axes.set(xticks=[], yticks=[])
    axes.margins(0.1, 0.06)
    styles = dict(zip(names, colours_and_markers(len(names)), strict=True))
    for relation, points in _by_relation(addresses).items():
        axes.plot(*zip(*points, strict=True), **_points(*styles[groups[relation]], shown=bool(legend)))
    if legend:
        _add_legend(figure, {name: styles[name] for name in legend})
    if not few:
        _label_centres(figure, axes, _by_relation(addresses))
    return figure


def _directions(explained: Sequence[float] | None) -> list[str]:
    names = ("first direction", "second direction")
    if explained is None:
        return list(names)
    return [f"{name} ({share:.0%} of the variance)" for name, share in zip(names, explained, strict=True)]


def _by_relation(addresses: Results) -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {}
    for (x, y), relation in zip(addresses["points"], addresses["relations"], strict=True):
        found.setdefault(relation, []).append((x, y))
    return found


def _points(colour: str, marker: str, *, shown: bool = True) -> dict[str, Any]:
    """Marks of a group; without a legend, colours would mean nothing."""
    return {
        "ls": "",
        "ms": 4,
        "mew": 0,
        "alpha": 0.75,
        "color": colour if shown else FAINT,
        "marker": marker if shown else "o",
    }


def _add_legend(figure: Figure, styles: Mapping[str, tuple[str, str]]) -> None:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], **(_points(*style) | {"ms": 6})) for style in styles.values()]
    names = ["\n".join(wrap(drawable(name), LABEL_WIDTH, break_on_hyphens=False)) for name in styles]
    place_legend(figure, lines, names)


def _label_centres(figure: Figure, axes: Axes, points: Mapping[str, Sequence[Point]]) -> None:
    """Names above the relations whose facts lie together, the most frequent first, as far as there is room."""
    from matplotlib.patheffects import withStroke

    style: dict[str, Any] = {"fontsize": 7.5, "ha": "center", "va": "bottom", "parse_math": False, "zorder": 5}
    texts = []
    near = TOGETHER * _width([point for of_one in points.values() for point in of_one])
    together = [relation for relation, of_one in points.items() if _width(of_one) <= near]
    for relation in sorted(together, key=lambda name: -len(points[name])):
        along, heights = zip(*points[relation], strict=True)
        place = median(along), sorted(heights)[3 * len(heights) // 4]  # few facts far above do not move it
        text = axes.annotate(drawable(relation), place, (0, 4), textcoords="offset points", **style)
        text.set_path_effects([withStroke(linewidth=2.5, foreground=GROUND)])
        texts.append(text)
    figure.draw_without_rendering()
    taken: list[Any] = []
    for text in texts:
        room = text.get_window_extent().padded(1)
        outside = room.x0 < axes.bbox.x0 or room.x1 > axes.bbox.x1
        if outside or any(room.overlaps(other) for other in taken):
            text.remove()
        else:
            taken.append(room)


def _width(points: Sequence[Point]) -> float:
    """How far a point lies from the centre of all, as a rule."""
    centre = [median(values) for values in zip(*points, strict=True)]
    return median(dist(point, centre) for point in points)
