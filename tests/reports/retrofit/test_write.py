"""The report and its picture: what they say, whole and partial."""

from __future__ import annotations

from pathlib import Path

import pytest

from contentrope.errors import InputError
from contentrope.reports import draw_picture, write_report
from contentrope.reports.retrofit import closing_words, main_tables
from tests.reports.reading import Page
from tests.reports.retrofit.made_up import made_results


def test_what_was_run_is_said(tmp_path: Path) -> None:
    write_report(made_results(), tmp_path)
    text = (tmp_path / "report.md").read_text()
    for words in (
        "# Retrofit on shakespeare",
        "Original: Llama's architecture, trained here with RoPE for 5,000 steps of 64 windows, learning rate 0.001.",
        "Preset paper. Trained on windows of 256 characters, for the conversion: 500 steps, 64 windows a step",
        "Units: line. Read at 256, 512, 1,024, 2,048, 4,096 characters.",
        "untouched: the original as it is",
        "| content:positions=gated | 4.11 ± 0.01 |",
        "Reads at 4,096 at most 2% above",
        "contentrope reproduce retrofit --preset paper --seeds 2 --out runs/retrofit-paper",
    ):
        assert words in text
    assert "*paper*" not in text, "the paper has no such table"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curve.png", "curve.svg", "report.html", "report.md"]
    page = Page((tmp_path / "report.html").read_text())
    assert "Retrofit on shakespeare" in page.text
    picture = (tmp_path / "curve.svg").read_text()
    assert "hollow: the paper" not in picture


def test_a_checkpoint_of_ones_own_is_named_and_counted_in_tokens(tmp_path: Path) -> None:
    results = made_results()
    results["config"]["model"] = "there/smol"
    write_report(results, tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "Original: there/smol." in text
    assert "| tokens read | 256 |" in text
    assert "Perplexity per token" in text
    assert main_tables(results)[0][0] == "Perplexity by tokens read; lower is better"
    assert "windows of 256" in closing_words(results)


def test_an_unfinished_run_is_reported(tmp_path: Path) -> None:
    results = made_results()
    results["variants"] = {"untouched": results["variants"]["untouched"]}
    write_report(results, tmp_path)
    assert "Unfinished: 2 of 10 runs are in." in (tmp_path / "report.md").read_text()
    results["variants"] = {}
    write_report(results, tmp_path)
    assert "Perplexity by length" not in (tmp_path / "report.md").read_text()


def test_foreign_numbers_are_refused(tmp_path: Path) -> None:
    results = made_results()
    results["variants"]["untouched"]["runs"]["0"]["perplexity"]["long"] = 3.0
    with pytest.raises(InputError, match="'long', which is not a number"):
        draw_picture(results, tmp_path / "picture.svg")
