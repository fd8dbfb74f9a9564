"""What is shown while runs go on: on a terminal and in a log."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from contentrope.cli.progress import Bars, Lines, progress_display
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


def test_what_is_measured_says_how_far_it_is_and_how_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = {}
    for seconds in (0.0, 1000.0):
        monkeypatch.setattr("contentrope.cli.progress.SECONDS_BETWEEN_LINES", seconds)
        console = Console(file=io.StringIO(), width=40)
        with progress_display(console) as lines:
            for read in (0, 1000, 4000):
                lines.measured("before", read, 4000)
        printed[seconds] = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line.split(",")[0] for line in printed[0.0]] == ["before: 1", "before: 4"]
    assert "0 s left" in printed[0.0][-1]
    assert printed[1000.0] == []
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    with progress_display(console) as bars:
        bars.measured("before", 1000, 4000)
        assert "25%" in " ".join(shown_by(bars))


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
