"""Pictures of a result, all in one style.

matplotlib is optional and imported only where something is drawn.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from contentrope.errors import BackendError
from contentrope.reports.known import experiment_of
from contentrope.reports.looks import FAINT, GROUND, INK
from contentrope.reports.read import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE: dict[str, Any] = {
    "svg.hashsalt": "contentrope",  # otherwise every SVG gets new ids
    "font.size": 10,
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
class Drawn:
    svg: bytes
    png: bytes


def draw(results: Results, only: str | None = None) -> dict[str, Drawn]:
    """Every picture there are numbers for (or ``only`` one of them), by the stem of its file."""
    try:
        import matplotlib.style
    except ImportError as error:
        raise BackendError("pictures need matplotlib: pip install contentrope[report]") from error
    # From the defaults, so that nobody's own settings change the picture.
    with matplotlib.style.context(["default", _STYLE]):
        figures = experiment_of(results).figures(results)
        return {name: _rendered(figure) for name, figure in figures.items() if figure and only in (None, name)}


def _rendered(figure: Figure) -> Drawn:
    svg, png = io.BytesIO(), io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    figure.savefig(png, format="png", dpi=200, metadata={"Software": None})
    return Drawn(svg.getvalue(), png.getvalue())
