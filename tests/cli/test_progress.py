"""What is shown while runs go on: on a terminal and in a log."""

from __future__ import annotations

import io
import itertools

import pytest
from rich.console import Console

from contentrope.cli import progress
from contentrope.cli.progress import Bars, Lines, counting, progress_display
from contentrope.training import StepReport


def report(step: int, steps: int = 400, speed: float = 1234.5) -> StepReport:
    return StepReport(step, steps, 1.5, 0.1, 1e-3, speed, 10.0, 1.0)


def test_a_log_has_a_line_every_tenth_however_often_the_loss_is_looked_at() -> None:
    console = Console(file=io.StringIO(), width=40)
    with progress_display(console) as lines:
        assert isinstance(lines, Lines)
        lines.planned(2, 0, 400)
        for step in range(50, 401, 50):  # a tenth is 40: no look falls on most of them
            lines.trained("rope", report(step))
        lines.evaluated("rope", "2.50 at 4,096")
        lines.finished("rope", "perplexity 2.50 at 256, inf at 4,096")
    printed = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert printed[0] == "rope: step 50/400, loss 1.500, 1,234 tokens/s, 35 s left"
    assert len(printed) == 9
    assert printed[-1] == "rope: perplexity 2.50 at 256, inf at 4,096 (1 of 2 runs done)"


def shown_by(bars: Bars) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    console.print(bars.progress.get_renderable())
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_a_terminal_shows_all_runs_and_those_under_way() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    with progress_display(console) as bars:
        assert isinstance(bars, Bars)
        bars.planned(4, 1, 400)
        bars.kept("content, seed 0")
        bars.trained("content:competition=1,frequencies=model_wide, seed 1", report(100, speed=12_345_678))
        bars.trained("[bold]rope, seed 0", report(400))
        overall, first, second = shown_by(bars)
        assert overall.startswith("1 of 4 runs done")
        assert " 42% " in overall  # 500 of 1,200 steps
        assert first.startswith("content:competition=1")
        assert "loss 1.500 12.3M tokens/s" in first
        assert "…" in first, "the name is cut, not the numbers"
        assert second.startswith("[bold]rope, seed 0")
        bars.evaluated("[bold]rope, seed 0", "2.50 at 4,096")
        bars.evaluated("alibi, trained earlier", "inf at 4,096")
        lines = shown_by(bars)
        assert "2.50 at 4,096" in lines[2]
        assert "inf at 4,096" in lines[3]
        bars.finished("[bold]rope, seed 0", "perplexity 2.50 at 4,096")
        bars.finished("alibi, trained earlier", "perplexity inf at 4,096")
        overall, running = shown_by(bars)
        assert overall.startswith("3 of 4 runs done")
        assert " 75% " in overall  # 100, 400 and 400 steps
        assert running.startswith("content")
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[bold]rope, seed 0: perplexity 2.50 at 4,096" in printed


def test_a_single_run_needs_no_overall_bar() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    with Bars(console) as bars:
        bars.planned(1, 0, 400)
        bars.trained("rope", report(100))
        assert len(shown_by(bars)) == 1


def test_what_is_counted_is_a_bar_on_a_terminal() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    with counting(console, "[kv] at 4,096 tokens", 20) as advance:
        advance(5)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[kv] at 4,096 tokens" in printed
    assert " 25%" in printed


@pytest.mark.parametrize(("seconds", "lines"), [(1.0, 0), (31.0, 3)])
def test_what_is_counted_is_a_line_now_and_then_in_a_log(
    seconds: float, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(step=seconds)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    console = Console(file=io.StringIO(), width=80)
    with counting(console, "kv", 4) as advance:
        for done in (1, 2, 3):
            advance(done)
    printed = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(printed) == lines
    assert not lines or "kv: 1 of 4, 93 s left" in printed[0]
