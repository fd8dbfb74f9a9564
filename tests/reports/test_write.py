"""The files of a report: what they say, what they are made without, and the same bytes every time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from contentrope.errors import BackendError
from contentrope.reports import pictures, write_report
from contentrope.results import write_json
from tests.reports.growth.made_up import CURVES, made_results, with_details
from tests.reports.reading import Page


def without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.style", None)


def test_all_files_are_written_and_nothing_else(tmp_path: Path) -> None:
    written = write_report(with_details(made_results()), tmp_path / "new")
    names = ["report.md", "report.html", "curve.svg", "curve.png", "positions.svg", "positions.png"]
    assert [path.name for path in written] == names
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(names)
    assert (tmp_path / "new" / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_no_position_picture_without_positions(tmp_path: Path) -> None:
    assert [path.name for path in write_report(made_results(), tmp_path)][2:] == ["curve.svg", "curve.png"]


def test_a_report_is_the_same_every_time(tmp_path: Path) -> None:
    results = with_details(made_results())
    for first, second in zip(write_report(results, tmp_path / "a"), write_report(results, tmp_path / "b"), strict=True):
        assert first.read_bytes() == second.read_bytes(), first.name


def test_what_was_run_is_said(tmp_path: Path) -> None:
    write_report(made_results(), tmp_path)
    text = (tmp_path / "report.md").read_text()
    for words in (
        "# Context growth on shakespeare",
        "Preset paper. Trained on windows of 256 characters: 5,000 steps, 32 windows a step, learning rate 0.001, ",
        "precision tf32, seeds 0, 1, 2.",
        "Model: width 128, layers 4, heads 4, dropout 0, 818,561 parameters.",
        "Text: shakespeare, 1,000,000 characters, 65 symbols, 900,000 to train on, 100,000 held out, SHA-256 86c4e6aa",
        "NVIDIA H200, contentrope 0.1.0, torch 2.13.0, Python 3.11.2, commit 4f6b60ae04b5 with local changes, 2026-01",
        "contentrope reproduce shakespeare --preset paper --seeds 3 --out runs/shakespeare-paper",
        "![Perplexity against characters read",
    ):
        assert words in text
    assert "Unfinished" not in text


def test_seeds_may_be_a_number_and_once_and_search_are_told(tmp_path: Path) -> None:
    results = made_results()
    results["config"] |= {"seeds": 3, "once": [4096, 65536], "search": True}
    write_report(results, tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "seeds 0, 1, 2." in text
    assert "(4,096 with the first seed alone)" in text
    assert "the held-out text stays unseen" in text
    assert "--seeds 3" in text


def test_a_run_with_settings_of_its_own_names_no_preset(tmp_path: Path) -> None:
    write_report(made_results() | {"preset": "custom"}, tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "contentrope reproduce shakespeare --seeds 3 --out runs/shakespeare-custom" in text
    assert "give those under config" in text


def test_the_training_length_is_found_among_nested_settings(tmp_path: Path) -> None:
    results = made_results()
    del results["config"]["length"]
    results["config"] = {"distant": {"length": 4096}, **results["config"]}
    results["config"]["training"]["length"] = 512
    write_report(results, tmp_path)
    assert "Trained on windows of 512 characters" in (tmp_path / "report.md").read_text()


def test_two_machines_are_both_named_and_none_is_no_problem(tmp_path: Path) -> None:
    results = made_results()
    cpu = {"device": "cpu", "cpu": "AMD EPYC", "threads": 2, "torch": "2.13.0", "git": None}
    results["variants"]["rope"]["runs"]["0"]["environment"] = cpu
    write_report(results, tmp_path)
    assert "NVIDIA H200 and AMD EPYC (CPU, 2 threads), contentrope 0.1.0" in (tmp_path / "report.md").read_text()
    for entry in results["variants"].values():
        for run in entry["runs"].values():
            run["environment"] = None
    write_report(results | {"environment": None}, tmp_path)
    assert "Made with" not in (tmp_path / "report.md").read_text()


def test_an_unfinished_experiment_says_so(tmp_path: Path) -> None:
    results = made_results({"content": CURVES["content"], "rope": CURVES["rope"]})
    results["config"]["variants"].append("alibi")
    del results["variants"]["rope"]["runs"]["2"]
    write_report(results, tmp_path)
    assert "Unfinished: 5 of 9 runs are in." in (tmp_path / "report.md").read_text()


# --- what it does not need -----------------------------------------------------------------------------------------


def test_without_matplotlib_there_is_a_report_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_matplotlib(monkeypatch)
    written = write_report(with_details(made_results()), tmp_path)
    assert [path.name for path in written] == ["report.md", "report.html"]
    text = (tmp_path / "report.md").read_text()
    assert "pip install contentrope[report]" in text.replace("\\", "")
    assert "](curve.svg)" not in text
    page = Page((tmp_path / "report.html").read_text())
    assert "pip install contentrope[report]" in page.text
    assert "svg" not in [tag for tag, _ in page.tags]


def test_drawing_without_matplotlib_names_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    without_matplotlib(monkeypatch)
    with pytest.raises(BackendError, match=r"pip install contentrope\[report\]"):
        pictures.draw(made_results())


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from contentrope.reports import read_results, write_report
assert "matplotlib" not in sys.modules
print(len(write_report(read_results({results!r}), {out!r})))
assert "pyplot" not in " ".join(sys.modules)
"""


def test_reports_need_no_torch(tmp_path: Path) -> None:
    write_json(tmp_path / "results.json", with_details(made_results()))
    program = WITHOUT_TORCH.format(results=str(tmp_path / "results.json"), out=str(tmp_path))
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() == "6"
