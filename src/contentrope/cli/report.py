"""``contentrope report``: what an experiment has found so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from tyro.conf import Positional, arg

from contentrope.cli.options import one
from contentrope.cli.tables import print_results, say
from contentrope.errors import InputError
from contentrope.outputs import REPORT, OutputFolder

REPORT_TIME = 60.0
"""Seconds that another report of the same folder may take."""


@dataclass(frozen=True)
class Report:
    """Print the table and write the report of an experiment, also while it runs or when runs are missing.

    Example: contentrope report runs/shakespeare-quick
    """

    folder: Positional[Annotated[Path, arg(metavar="DIR")]]
    """Folder with the results.json of `contentrope reproduce`, or that file itself."""
    out: Annotated[Path | None, one(Path, "DIR"), arg(help_behavior_hint="(default: beside results.json)")] = None
    """Folder for the report."""

    def run(self) -> None:
        from contentrope.reports import read_results

        path = self.folder if self.folder.is_file() else self.folder / "results.json"
        if not path.exists():
            raise InputError(f"no results.json in {self.folder}: no run has finished there yet, or not its folder")
        show_results(Console(), read_results(path), self.out or path.parent)


def show_results(console: Console, results: Mapping[str, Any], folder: Path) -> None:
    """Print the tables of all finished runs, write the report, and say where it is and what is missing."""
    from contentrope.reports import write_report
    from contentrope.reports.known import experiment_of
    from contentrope.reports.read import variants_of

    if variants_of(results):
        print_results(console, results)
        say(console, f"\n{experiment_of(results).closing_words(results)}")
    missing = missing_runs(results)
    if missing:
        say(console, f"Not finished yet: {'; '.join(missing)}.")
    # Not the lock of the experiment: reports are made while it runs too.
    with OutputFolder(folder, "report", part=REPORT, patience=REPORT_TIME):
        written = write_report(results, folder)
    for path in written:
        say(console, f"written: {path}")


def missing_runs(results: Mapping[str, Any]) -> list[str]:
    """The variants with seeds that were asked for and are not there, one phrase each."""
    from contentrope.reports.read import seeds_of

    lines = []
    for variant in results["config"].get("variants") or ():
        runs = results["variants"].get(variant, {"runs": {}})["runs"]
        seeds = [str(seed) for seed in seeds_of(results) if str(seed) not in runs]
        if seeds:
            lines.append(f"{variant}, seed {', '.join(seeds)}")
    return lines
