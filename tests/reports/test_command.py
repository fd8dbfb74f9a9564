"""``python -m contentrope.reports``, and which files it refuses."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from contentrope.errors import InputError
from contentrope.reports import read_results, write_report
from contentrope.reports.__main__ import main
from contentrope.results import write_json
from tests.reports.growth.made_up import made_results, with_details


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_json(tmp_path / "results.json", with_details(made_results()))
    return tmp_path / "results.json"


def test_the_report_goes_beside_the_file_or_where_asked(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(file)]) == 0
    assert str(file.parent / "report.md") in capsys.readouterr().out
    assert (file.parent / "report.html").exists()
    assert main([str(file), "--out", str(file.parent / "deep" / "er")]) == 0
    for name in ("report.md", "report.html", "curve.svg", "curve.png"):
        assert (file.parent / "deep" / "er" / name).read_bytes() == (file.parent / name).read_bytes()


def test_the_picture_alone(file: Path) -> None:
    assert main([str(file), "--picture-only", str(file.parent / "x.svg")]) == 0
    assert sorted(path.name for path in file.parent.iterdir()) == ["results.json", "x.svg"]


def test_the_picture_alone_is_never_written_over_something(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file.parent / "x.svg").write_text("precious")
    assert main([str(file), "--picture-only", str(file.parent / "x.svg")]) == 2
    assert str(file.parent / "x.svg") in capsys.readouterr().err
    assert (file.parent / "x.svg").read_text() == "precious"


def test_a_report_of_somebody_elses_stays(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file.parent / "curve.svg").write_text("precious")
    assert main([str(file)]) == 2
    assert str(file.parent / "curve.svg") in capsys.readouterr().err
    assert sorted(path.name for path in file.parent.iterdir()) == ["curve.svg", "results.json"]
    (file.parent / "curve.svg").unlink()
    assert main([str(file)]) == 0
    assert main([str(file)]) == 0


def test_the_picture_alone_needs_matplotlib(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([str(file), "--picture-only", str(file.parent / "x.svg")]) == 2
    assert capsys.readouterr().err == "error: pictures need matplotlib: pip install contentrope[report]\n"


def test_as_a_module(file: Path) -> None:
    command = [sys.executable, "-m", "contentrope.reports", str(file)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    assert "report.html" in finished.stdout


def test_a_missing_file_and_a_folder_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        assert main([str(path)]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert str(path) in error
        assert error.count("\n") == 1


def test_a_damaged_file_is_one_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(file.read_text()[:-30])
    assert main([str(file)]) == 2
    error = capsys.readouterr().err
    assert "truncated or not JSON" in error
    assert error.count("\n") == 1


def changed(change: Any) -> Any:
    results = made_results({"content": (4.4,) * 5}, seeds=1)
    change(results, results["variants"]["content"]["runs"]["0"])
    return results


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ([1, 2], "the file should be a JSON object"),
        ({"schemes": {}}, "it names no experiment"),
        ({"experiment": "growth", "config": {}, "corpus": {}, "schemes": {}}, "variants should be a JSON object"),
        (changed(lambda results, run: results.update(corpus=None)), "corpus should be"),
        (changed(lambda results, run: results["variants"].update(rope=3)), "variant rope should be"),
        (changed(lambda results, run: results["variants"].update(rope={})), "runs of rope should be"),
        (changed(lambda results, run: run.pop("perplexity")), "perplexity in run 0 of content should be"),
        (changed(lambda results, run: run["perplexity"].update(x=4.0)), "length 'x', which is not a number"),
        (changed(lambda results, run: run["perplexity"].update({"0": 4.0})), "length '0', which is not a number"),
        (changed(lambda results, run: run["perplexity"].update({"256": "4"})), "at 256 is '4', not a positive"),
        (changed(lambda results, run: run["perplexity"].update({"256": -1})), "at 256 is -1, not a positive"),
        (changed(lambda results, run: run.update(by_position={"edges": [0, 1], "perplexity": []})), "by_position"),
        (changed(lambda results, run: run.update(by_position={"edges": [0, 0], "perplexity": [4]})), "rising edges"),
        (changed(lambda results, run: run.update(final_loss="low")), "final_loss in run 0 of content is 'low'"),
        (changed(lambda results, run: results["config"].update(seeds="all")), "config.seeds is 'all'"),
        (changed(lambda results, run: results["config"].update(seeds=10**12)), "config.seeds is 1000000000000"),
        (changed(lambda results, run: run["perplexity"].update({"9" * 5000: 4.0})), "which is not a number from 1 on"),
        (changed(lambda results, run: run["perplexity"].update({"256": 10**400})), "not a positive number or null"),
        (changed(lambda results, run: run.update(model={"rotary": 3})), "rotary of the model in run 0 of content"),
        (changed(lambda results, run: results["config"].update(once=7)), "config.once is 7, not a list of int"),
        (changed(lambda results, run: run.update(distant={"perplexity": {}})), "distant in run 0 of content"),
    ],
)
def test_a_foreign_file_is_refused_with_the_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: Any, problem: str
) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(data))
    assert main([str(path)]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1
    with pytest.raises(InputError, match="is not a result file of a context-growth experiment"):
        read_results(path)
    with pytest.raises(InputError):
        write_report(data, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]
