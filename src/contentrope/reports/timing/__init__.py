"""Report of the timing experiment: how much longer a training step takes with addresses than with plain RoPE."""

from __future__ import annotations

from contentrope.reports.read import Results
from contentrope.reports.tables import Table
from contentrope.reports.timing.check import check_config, check_run
from contentrope.reports.timing.document import document
from contentrope.reports.timing.figures import OVERHEADS, figures
from contentrope.reports.timing.read import accelerations_of
from contentrope.reports.timing.tables import TITLES, overhead_table

__all__ = ["KIND", "MAIN_PICTURE", "check_config", "check_run", "closing_words", "document", "figures", "main_tables"]

KIND, MAIN_PICTURE = "a timing experiment", OVERHEADS


def main_tables(results: Results) -> list[tuple[str, Table]]:
    return [
        (f"{TITLES[acceleration]}: milliseconds a training step", overhead_table(results, acceleration))
        for acceleration in accelerations_of(results)
    ]


def closing_words(results: Results) -> str:
    return (
        "Times are medians over the timed steps; overhead is what a step takes more than RoPE's with the same "
        "acceleration, as a share of it."
    )
