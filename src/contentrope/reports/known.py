"""The experiments there are reports of, and what the folder of each one offers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from contentrope.errors import InputError
from contentrope.reports import facts, growth, retrofit, timing
from contentrope.reports.blocks import Block
from contentrope.reports.read import Results
from contentrope.reports.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Experiment(Protocol):
    """The names in an experiment's ``__init__.py``."""

    KIND: str
    """What it is, with its article, for messages."""
    MAIN_PICTURE: str
    """The picture that is drawn where there is room for one."""

    def check_config(self, config: Mapping[str, Any]) -> None:
        """Refuse settings that a report cannot show."""

    def check_run(self, where: str, run: Mapping[str, Any]) -> None:
        """Refuse a run that a report cannot show."""

    def figures(self, results: Results) -> dict[str, Figure | None]:
        """By the stem of its file; None where there is nothing to draw."""

    def document(self, results: Results, pictures: Collection[str], no_pictures: str | None = None) -> list[Block]:
        """The whole report; ``pictures`` names those that were drawn, ``no_pictures`` says why there are none."""

    def main_tables(self, results: Results) -> list[tuple[str, Table]]:
        """What a command prints: titles and tables."""

    def closing_words(self, results: Results) -> str:
        """How to read these tables, in a sentence or two."""


KNOWN: dict[str, Experiment] = {"shakespeare": growth, "facts": facts, "timing": timing, "retrofit": retrofit}
"""By the name in a result file."""


def experiment_of(results: Results) -> Experiment:
    name = results["experiment"]
    if name not in KNOWN:
        raise InputError(f"its experiment is {name[:40]!r}, and there are reports of {' and '.join(KNOWN)}")
    return KNOWN[name]
