"""How each variant is drawn: a colour and a marker of its own, in every picture the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from contentrope.reports.read import ADDED, scheme_and_options

INK, FAINT, GROUND = "#1f2328", "#8b949e", "#ffffff"
# Okabe and Ito's colours, which colour-blind readers can tell apart, without the yellow; then some of Paul Tol's.
_OWN_COLOURS = {"content": "#0072b2", "rope": "#d55e00", "alibi": "#009e73", "random": "#e69f00"}
_OTHER_COLOURS = (
    "#cc79a7", "#56b4e9", "#882255", "#777777", "#332288", "#999933", "#44aa99", "#aa4499", "#661100", "#6699cc",
    "#117733", "#ddcc77", "#000000",
)  # fmt: skip
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")


@dataclass(frozen=True)
class Look:
    colour: str
    marker: str
    line: str
    width: float
    order: int
    """Drawing order: higher lies on top."""


def looks(variants: Sequence[str]) -> dict[str, Look]:
    """By variant, in the order of the legend: content first, the others as they come."""
    ordered = sorted(variants, key=lambda name: not _is_content(name))
    colours = _colours(list(dict.fromkeys(map(_per_head_twin, ordered))))
    found = {}
    for place, name in enumerate(ordered):
        kin = _per_head_twin(name)
        found[name] = Look(
            colour=colours[kin],
            marker=_MARKERS[place % len(_MARKERS)],
            line="-" if kin == name else "--",
            width=2.6 if _is_content(name) else 1.5,
            order=len(ordered) - place,
        )
    return found


def colours_and_markers(count: int) -> list[tuple[str, str]]:
    """For things that are no variants, such as groups of points: so many that a reader can tell apart."""
    colours = (*_OWN_COLOURS.values(), *_OTHER_COLOURS)
    return [(colours[place % len(colours)], _MARKERS[place % len(_MARKERS)]) for place in range(count)]


def _is_content(variant: str) -> bool:
    return scheme_and_options(variant)[0] == "content"


def _per_head_twin(variant: str) -> str:
    """The variant without its layout of frequencies: both share a colour, the twin is dashed.

    >>> _per_head_twin("rope:frequencies=model_wide")
    'rope'
    """
    scheme, options = scheme_and_options(variant)
    rest = ",".join(f"{name}={value}" for name, value in options.items() if name != "frequencies")
    plain = f"{scheme}:{rest}" if rest else scheme
    return "".join((plain, *variant.partition(ADDED)[1:]))


def _colours(variants: Sequence[str]) -> dict[str, str]:
    """A scheme's own colour is for its plain form, or for its first variant where there is none."""
    by_scheme: dict[str, str] = {}
    for name in sorted(variants, key=lambda name: ":" in name):
        by_scheme.setdefault(scheme_and_options(name)[0], name)
    own = {by_scheme[scheme]: colour for scheme, colour in _OWN_COLOURS.items() if scheme in by_scheme}
    others = [name for name in variants if name not in own]
    return own | {name: _OTHER_COLOURS[i % len(_OTHER_COLOURS)] for i, name in enumerate(others)}
