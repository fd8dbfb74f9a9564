"""What a running experiment shows: a bar on a terminal, a line every tenth of the way anywhere else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from contentrope.experiments.training import StepReport


class Bars:
    """One progress bar per scheme."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),  # the rest fits into 80 columns
            TaskProgressColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Bars:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def kept(self, scheme: str) -> None:
        self.progress.console.print(f"{escape(scheme)}: finished earlier, kept")

    def trained(self, scheme: str, report: StepReport) -> None:
        if scheme not in self.tasks:
            self.tasks[scheme] = self.progress.add_task(escape(scheme), total=report.steps, status="")
        status = f"loss {report.loss:.3f}, {report.tokens_per_second:,.0f} tokens/s"
        self.progress.update(self.tasks[scheme], completed=report.step, status=status)

    def evaluated(self, scheme: str, length: int, value: float) -> None:
        if scheme in self.tasks:  # absent if an earlier run finished its training
            self.progress.update(self.tasks[scheme], status=f"perplexity {value:.2f} at {length}")


class Lines:
    """Plain lines, for a log file or a pipe."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def kept(self, scheme: str) -> None:
        self._print(f"{scheme}: finished earlier, kept")

    def trained(self, scheme: str, report: StepReport) -> None:
        if report.step * 10 // report.steps > (report.step - 1) * 10 // report.steps:
            self._print(
                f"{scheme}: step {report.step}/{report.steps}, loss {report.loss:.3f}, "
                f"{report.tokens_per_second:,.0f} tokens/s, {report.seconds_left:.0f} s left"
            )

    def evaluated(self, scheme: str, length: int, value: float) -> None:
        self._print(f"{scheme}: perplexity {value:.2f} at {length}")

    def _print(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def progress_display(console: Console) -> Bars | Lines:
    return Bars(console) if console.is_terminal else Lines(console)


def perplexity_table(title: str, rows: dict[str, dict[str, float]], lengths: Sequence[int]) -> Table:
    """Perplexity by scheme (down) and length (across)."""
    table = Table(title=title, title_justify="left")
    table.add_column("scheme", no_wrap=True)
    for length in lengths:
        table.add_column(f"{length:,}", justify="right", no_wrap=True)
    for scheme, values in rows.items():
        table.add_row(escape(scheme), *(f"{values[str(length)]:.2f}" for length in lengths))
    return table


def facts_table(facts: dict[str, Any]) -> Table:
    """Two columns without a frame: what, and its value."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, value in facts.items():
        table.add_row(escape(name), escape(str(value)))
    return table
