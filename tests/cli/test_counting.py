"""What is shown while parts are counted: on a terminal and in a log."""

from __future__ import annotations

import io
import itertools

import pytest
from rich.console import Console

from contentrope.cli import counting as module
from contentrope.cli.counting import counting


def test_a_terminal_has_a_bar() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    with counting(console, "[kv] at 4,096 tokens", 20) as advance:
        advance(5)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[kv] at 4,096 tokens" in printed
    assert " 25%" in printed


@pytest.mark.parametrize(("seconds", "lines"), [(1.0, 0), (31.0, 3)])
def test_a_log_has_a_line_now_and_then(seconds: float, lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=seconds)
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    console = Console(file=io.StringIO(), width=80)
    with counting(console, "kv", 4) as advance:
        for done in (1, 2, 3):
            advance(done)
    printed = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(printed) == lines
    assert not lines or "kv: 1 of 4, 93 s left" in printed[0]
