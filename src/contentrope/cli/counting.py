"""What is shown while something is measured whose parts can be counted, such as tokens read or questions answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from contentrope.cli.tables import say

SECONDS_BETWEEN_LINES = 30.0
"""Where there is no bar."""


@contextmanager
def counting(console: Console, name: str, total: int) -> Iterator[Callable[[int], None]]:
    """How far something is: the block tells how many parts are done.

    A bar with the time left, on a terminal, while the block lasts; else a line now and then.
    """
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bars:
            task = bars.add_task(escape(name), total=total)
            yield lambda done: bars.update(task, completed=done)
        return
    began = said = time.monotonic()

    def line(done: int) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said >= SECONDS_BETWEEN_LINES:
            said = now
            left = (now - began) / done * (total - done)
            say(console, f"{name}: {done:,} of {total:,}, {left:.0f} s left")

    yield line
