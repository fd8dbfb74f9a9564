"""Report of the retrofit experiment: a finished model, converted in several ways, read at longer and longer windows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from contentrope.reports.checks import require_object
from contentrope.reports.growth.check import check_run
from contentrope.reports.growth.curves import training_length
from contentrope.reports.growth.figures import CURVE, curve_figure
from contentrope.reports.read import Results
from contentrope.reports.retrofit.described import along
from contentrope.reports.retrofit.document import document
from contentrope.reports.retrofit.tables import perplexity_table
from contentrope.reports.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["KIND", "MAIN_PICTURE", "check_config", "check_run", "closing_words", "document", "figures", "main_tables"]

KIND, MAIN_PICTURE = "a retrofit experiment", CURVE


def check_config(config: Mapping[str, Any]) -> None:
    """All else is read from the settings with a look at it."""
    require_object("config.pretraining", config.get("pretraining") or {})


def figures(results: Results) -> dict[str, Figure | None]:
    return {CURVE: curve_figure(results, paper=False, along=along(results))}


def main_tables(results: Results) -> list[tuple[str, Table]]:
    return [(f"Perplexity by {along(results)}; lower is better", perplexity_table(results))]


def closing_words(results: Results) -> str:
    return (
        f"The original was trained on windows of {training_length(results):,}, and so were its conversions; the last "
        "column is the perplexity at the longest windows against the original's at that length."
    )
