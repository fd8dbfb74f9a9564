"""Report of retrieval from facts: can a model find the fact that is asked for, among others?"""

from __future__ import annotations

from contentrope.reports.facts.check import check_config, check_run
from contentrope.reports.facts.described import facts_per_example
from contentrope.reports.facts.document import document
from contentrope.reports.facts.figures import HITS, figures
from contentrope.reports.facts.rows import PERPLEXITY
from contentrope.reports.facts.tables import row_table
from contentrope.reports.read import Results
from contentrope.reports.tables import Table

__all__ = ["KIND", "MAIN_PICTURE", "check_config", "check_run", "closing_words", "document", "figures", "main_tables"]

KIND, MAIN_PICTURE = "an experiment in retrieval from facts", HITS


def main_tables(results: Results) -> list[tuple[str, Table]]:
    return [
        ("Hit@5 by row; higher is better", row_table(results)),
        ("Perplexity of the scored characters by row; lower is better", row_table(results, PERPLEXITY)),
    ]


def closing_words(results: Results) -> str:
    return (
        f"Trained on {facts_per_example(results)} an example. Same entities: the other facts have the same names in "
        "other relations; same relation: other names in the same relation. test: names that training has not seen."
    )
