"""What commands print. Tables are never cut off: a narrow terminal wraps their lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

STYLES = {"plain": "", "strong": "bold", "emphasis": "italic"}


class SavingConsole(Console):
    """For long runs: when its reader is gone, as after ``| head``, the run stops as with Ctrl-C, which saves."""

    def on_broken_pipe(self) -> None:
        try:
            super().on_broken_pipe()  # silent from now on
        except SystemExit:
            raise KeyboardInterrupt from None


def say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def print_table(console: Console, title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A first column of names, then numbers; the cells are rich's markup."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for place, name in enumerate(head):
        table.add_column(escape(name), justify="right" if place else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    say(console, f"\n{title}")
    type(console)(file=console.file, width=10_000, quiet=console.quiet).print(table)


def print_results(console: Console, results: Mapping[str, Any]) -> None:
    """The main tables of an experiment as its report has them: mean and spread over seeds, beside the paper's."""
    from contentrope.reports.known import experiment_of

    for title, table in experiment_of(results).main_tables(results):
        rows = [[f"[{STYLES[cell.style] or 'default'}]{escape(cell.text)}[/]" for cell in row] for row in table.rows]
        print_table(console, title, table.head, rows)


def facts_table(facts: Mapping[str, Any]) -> Table:
    """Two columns without a frame: what, and its value."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, value in facts.items():
        table.add_row(escape(name), escape(str(value)))
    return table
