"""The report and its picture: what they say, whole and partial."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from contentrope.errors import InputError
from contentrope.reports import draw_picture, write_report
from tests.reports.reading import Page
from tests.reports.timing.made_up import TIMES, made_results


def text_of(results: dict[str, Any], folder: Path) -> str:
    write_report(results, folder)
    return (folder / "report.md").read_text()


def figure_of(results: dict[str, Any]) -> Any:
    import matplotlib.style

    from contentrope.reports.timing import figures

    with matplotlib.style.context("default"):
        return figures(results)["overheads"]


# --- the report ----------------------------------------------------------------------------------------------------


def test_what_was_run_is_said(tmp_path: Path) -> None:
    text = text_of(made_results(seeds=2), tmp_path)
    for words in (
        "# Timing of training steps",
        "Preset paper: 10 steps timed, after 5 to warm up, 2 repetitions, precision bf16.",
        "A step is the forward pass, the backward pass, clipping, and the update by AdamW.",
        "rope, content and content:competition=1 take turns, step by step, eager, compiled and as one CUDA graph; "
        "attention backend of addressed schemes: auto.",
        "In the eager step the rotation of rope is compiled all the same, that of the others is not.",
        "Tokens are drawn at random of 65, units end at random, after 40 in the mean.",
        "Made with: NVIDIA H200, contentrope 0.1.0",
        "![Overhead over RoPE in percent by row",
        "± is the standard deviation over repetitions.",
        "Bold: within the target.",
        "contentrope reproduce timing --preset paper --variants 0.8M 85M 302M 680M '85M at 8,192' --seeds 2 --out",
        "python -m contentrope.reports runs/timing-paper/results.json",
    ):
        assert words in text
    headings = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
    assert headings == [
        "Eager", "Compiled", "Compiled, the step one CUDA graph", "What the numbers say", "All measurements",
        "Repeat it",
    ]  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "overheads.png", "overheads.svg", "report.html", "report.md",
    ]  # fmt: skip
    page = Page((tmp_path / "report.html").read_text())
    assert [tag for tag, _ in page.tags].count("svg") == 1


def test_a_cpu_has_no_target_and_an_eager_baseline_is_named(tmp_path: Path) -> None:
    results = made_results({"0.8M": {"none": (40.0, 42.0, 43.0)}}, gpu=False)
    results["config"]["rotary"] = "eager"
    text = text_of(results, tmp_path)
    assert "In the eager step the rotation of rope is eager, as that of the others." in text
    assert "Bold" not in text
    assert "Memory" not in text
    assert "±" not in text
    assert "AMD EPYC (CPU, 2 threads)" in text


def test_before_the_first_row_there_is_a_report(tmp_path: Path) -> None:
    results = made_results({})
    results["config"]["variants"] = ["85M", "302M"]
    text = text_of(results, tmp_path)
    assert "Unfinished: 0 of 2 runs are in." in text
    assert "## Eager" not in text
    assert "## Repeat it" in text


def test_unknown_settings_are_left_out(tmp_path: Path) -> None:
    results = made_results({"85M": {"none": (40.0, 41.0)}})
    results |= {"config": {"variants": ["85M"]}, "environment": None, "preset": None}
    run = results["variants"]["85M"]["runs"]["0"]
    for name in ("environment", "batch", "length", "size"):
        del run[name]
    text = text_of(results, tmp_path)
    assert "Preset custom: settings unknown." in text
    assert "Tokens are drawn" not in text
    assert "| 85M | 40.00 | 41.00 |" in text


def test_a_file_of_failures_alone_has_a_report_without_a_picture(tmp_path: Path) -> None:
    results = made_results({"85M": {"graphs": ("no CUDA", "no CUDA", "no CUDA")}})
    text = text_of(results, tmp_path)
    assert "| 85M | 4 × 1,024 | failed | failed | failed |" in text
    assert "Not timed: rope at 85M, as one CUDA graph (no CUDA)" in text
    assert not list(tmp_path.glob("*.svg"))
    with pytest.raises(InputError, match="nothing to draw"):
        draw_picture(results, tmp_path / "picture.svg")


# --- the picture ---------------------------------------------------------------------------------------------------


def test_a_panel_per_acceleration_a_mark_per_row_and_scheme() -> None:
    figure = figure_of(made_results())
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "Eager: overhead, % (dashed: target)",
        "Compiled: overhead, % (dashed: target)",
        "As one CUDA graph: overhead, % (dashed: target)",
    ]
    (eager, *_) = figure.axes
    marks = [line for line in eager.get_lines() if len(line.get_xdata()) == len(TIMES) and line.get_marker() in "os"]
    assert list(marks[0].get_ydata()) == pytest.approx(
        [100 * (t["none"][1] / t["none"][0] - 1) for t in TIMES.values()]
    )
    assert list(marks[1].get_ydata()) == pytest.approx(
        [100 * (t["none"][2] / t["none"][0] - 1) for t in TIMES.values()]
    )
    labels = [label.get_text() for label in figure.axes[-1].get_xticklabels()]
    assert labels == ["0.8M", "85M", "302M", "680M", "85M\nat 8,192"]


def test_the_paper_is_hollow_and_the_target_dashed() -> None:
    (axes, *_) = figure_of(made_results()).axes
    hollow = [line for line in axes.get_lines() if line.get_markerfacecolor() == "none"]
    assert [line.get_ydata()[0] for line in hollow] == [10.3, 4.4, 3.5, 2.0]
    dashed = [line for line in axes.get_lines() if line.get_linestyle() == "--"]
    assert [line.get_ydata()[0] for line in dashed] == [5.0, 2.5, 2.0, 1.5]
    figure = figure_of(made_results())
    assert "hollow: the paper" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_where_there_is_no_paper_and_no_target_none_is_drawn() -> None:
    figure = figure_of(made_results({"85M at 8,192": TIMES["85M at 8,192"]}, gpu=False))
    assert "hollow: the paper" not in [text.get_text() for text in figure.legends[0].get_texts()]
    assert all("target" not in axes.get_title(loc="left") for axes in figure.axes)


def test_the_picture_can_be_drawn_alone_and_is_the_same_every_time(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        draw_picture(made_results(seeds=2), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
