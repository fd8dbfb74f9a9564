"""What a run shows while it goes: bars on a terminal, a line every tenth of the way anywhere else."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column

from contentrope.cli.tables import say
from contentrope.training import StepReport

SECONDS_BETWEEN_LINES = 10.0
"""Of what is measured, in a log file."""


def progress_display(console: Console) -> Lines:
    return Bars(console) if console.is_terminal else Lines(console)


class Lines(AbstractContextManager["Lines"]):
    """Plain lines, for a log file or a pipe. ``name`` is what is trained: a variant and its seed."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.tenths: dict[str, int] = {}
        self.measuring: dict[str, tuple[float, float]] = {}
        """When it began, and when something was last said of it."""
        self.runs = self.done = self.steps = 0

    def __exit__(self, *error: object) -> None:
        pass

    def planned(self, runs: int, kept: int, steps: int) -> None:
        """How many runs there are in all, how many an earlier command finished, and the updates of each."""
        self.runs, self.done, self.steps = runs, kept, steps

    def kept(self, name: str) -> None:
        say(self.console, f"{name}: finished earlier, kept")

    def trained(self, name: str, report: StepReport) -> None:
        tenth = report.step * 10 // report.steps
        if tenth > self.tenths.get(name, 0):
            self.tenths[name] = tenth
            say(
                self.console,
                f"{name}: step {report.step}/{report.steps}, loss {report.loss:.3f}, "
                f"{_speed(report.tokens_per_second)}, {report.seconds_left:.0f} s left",
            )

    def measured(self, name: str, read: int, total: int, of: str = "tokens") -> None:
        """So many of the tokens are read that something is measured by."""
        now = time.monotonic()
        began, said = self.measuring.setdefault(name, (now, now))
        if now - said >= SECONDS_BETWEEN_LINES and read:
            self.measuring[name] = began, now
            left = (now - began) * (total - read) / read
            say(self.console, f"{name}: {read:,} of {total:,} {of} read, {left:.0f} s left")

    def evaluated(self, name: str, said: str) -> None:
        """Something was measured; here it is told when the run is finished."""

    def finished(self, name: str, said: str) -> None:
        """The run is written; ``said`` is its result in short."""
        self.done += 1
        say(self.console, f"{name}: {said} ({self.done} of {self.runs} runs done)")


class Bars(Lines):
    """A bar for all runs, and one for each that is under way."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.progress = Progress(
            # On a narrow terminal the name is cut, not the numbers.
            TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
            BarColumn(bar_width=8),
            TaskProgressColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
            console=console,
            expand=True,
        )
        self.tasks: dict[str, TaskID] = {}
        self.overall: TaskID | None = None
        self.steps_made: dict[str, int] = {}

    def __enter__(self) -> Bars:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def planned(self, runs: int, kept: int, steps: int) -> None:
        super().planned(runs, kept, steps)
        if runs > 1 and kept < runs:
            self.overall = self.progress.add_task("", total=(runs - kept) * steps, status="")
            self._show_overall()

    def trained(self, name: str, report: StepReport) -> None:
        if name not in self.tasks:
            self.tasks[name] = self.progress.add_task(escape(name), total=report.steps, status="")
        status = f"loss {report.loss:.3f} {_speed(report.tokens_per_second)}"
        self.progress.update(self.tasks[name], completed=report.step, status=status)
        self.steps_made[name] = report.step
        self._show_overall()

    def measured(self, name: str, read: int, total: int, of: str = "tokens") -> None:
        if name not in self.tasks:
            self.tasks[name] = self.progress.add_task(escape(name), total=total, status="")
        self.progress.update(self.tasks[name], completed=read, status=f"{read:,} {of}")

    def evaluated(self, name: str, said: str) -> None:
        if name not in self.tasks:  # an earlier command finished its training
            self.tasks[name] = self.progress.add_task(escape(name), total=1, completed=1, status="")
        self.progress.update(self.tasks[name], status=said)

    def finished(self, name: str, said: str) -> None:
        """The bar gives way to a line above: there may be many runs."""
        if name in self.tasks:
            self.progress.remove_task(self.tasks.pop(name))
        self.done += 1
        self.steps_made[name] = self.steps  # also where an earlier command made them
        say(self.console, f"{name}: {said}")
        self._show_overall()

    def _show_overall(self) -> None:
        if self.overall is not None:
            made = sum(self.steps_made.values())
            self.progress.update(self.overall, completed=made, description=f"{self.done} of {self.runs} runs done")


def _speed(tokens_per_second: float) -> str:
    """In short, as bars have little room.

    >>> _speed(8_514.2), _speed(81_234.5), _speed(12_345_678.9)
    ('8,514 tokens/s', '81k tokens/s', '12.3M tokens/s')
    """
    if tokens_per_second >= 1e6:
        return f"{tokens_per_second / 1e6:.1f}M tokens/s"
    if tokens_per_second >= 1e4:
        return f"{tokens_per_second / 1e3:.0f}k tokens/s"
    return f"{tokens_per_second:,.0f} tokens/s"
