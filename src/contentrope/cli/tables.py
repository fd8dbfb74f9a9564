"""What commands print. Tables are never cut off: a narrow terminal wraps their lines."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table


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
