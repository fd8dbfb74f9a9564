"""How each variant is drawn: a colour and a marker of its own, in every picture the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from contentrope.reports.read import scheme_and_options

INK, FAINT, GROUND = "#1f2328", "#8b949e", "#ffffff"
# Okabe and Ito's colours, which colour-blind readers can tell apart, without the yellow; then two of Paul Tol's.
_OWN_COLOURS = {"content": "#0072b2", "rope": "#d55e00", "alibi": "#009e73", "random": "#e69f00"}
_OTHER_COLOURS = ("#cc79a7", "#56b4e9", "#882255", "#777777", "#332288", "#999933")
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
    colours: dict[str, str] = {}
    found = {}
    for place, name in enumerate(ordered):
        kin = _per_head_twin(name)
        colour = colours.setdefault(
            kin, _OWN_COLOURS.get(kin) or _OTHER_COLOURS[_others(colours) % len(_OTHER_COLOURS)]
        )
        found[name] = Look(
            colour=colour,
            marker=_MARKERS[place % len(_MARKERS)],
            line="-" if kin == name else "--",
            width=2.6 if _is_content(name) else 1.5,
            order=len(ordered) - place,
        )
    return found


def _is_content(variant: str) -> bool:
    return scheme_and_options(variant)[0] == "content"


def _per_head_twin(variant: str) -> str:
    """The variant without its layout of frequencies: both share a colour, the twin is dashed.

    >>> _per_head_twin("rope:frequencies=model_wide")
    'rope'
    """
    scheme, options = scheme_and_options(variant)
    rest = ",".join(f"{name}={value}" for name, value in options.items() if name != "frequencies")
    return f"{scheme}:{rest}" if rest else scheme


def _others(colours: dict[str, str]) -> int:
    """How many colours beyond the schemes' own are taken."""
    return sum(name not in _OWN_COLOURS for name in colours)
