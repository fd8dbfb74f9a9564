"""Report of the context-growth experiment: trained on short windows, read at longer and longer ones."""

from __future__ import annotations

from contentrope.reports.growth.check import check_config, check_run
from contentrope.reports.growth.curves import training_length
from contentrope.reports.growth.document import document
from contentrope.reports.growth.figures import CURVE, figures
from contentrope.reports.growth.tables import length_table
from contentrope.reports.read import Results
from contentrope.reports.tables import Table

__all__ = ["KIND", "MAIN_PICTURE", "check_config", "check_run", "closing_words", "document", "figures", "main_tables"]

KIND, MAIN_PICTURE = "a context-growth experiment", CURVE


def main_tables(results: Results) -> list[tuple[str, Table]]:
    return [("Perplexity by characters read; lower is better", length_table(results))]


def closing_words(results: Results) -> str:
    return (
        f"Trained on windows of {training_length(results)} characters only: a row that stays level to the "
        "right bears more context than it was trained with, a rising one does not."
    )
