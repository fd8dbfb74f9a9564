"""Names are only text, missing numbers are dashes, foreign files are refused, unfinished experiments say so."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from experiments.report import command, main, write_report
from experiments.results import ResultError, read
from tests.experiments.report import made
from tests.experiments.report.page import Page

HOSTILE = "<script>alert('&amp;')</script> | `a` $x$ ünïcode"
CURVES = {"content": [{8: 4.0, 16: 4.1}, {8: 4.2, 16: 4.3}], "rope": [{8: 4.0, 16: None}, {8: 4.2, 16: 90.0}]}


def saved(results: Any, folder: Path) -> Path:
    path = folder / "results.json"
    path.write_text(json.dumps(results))
    return path


@pytest.mark.parametrize(
    "results",
    [
        made.growth({HOSTILE: [{8: 4.0, 16: 5.0}]}, corpus=HOSTILE),
        made.facts({HOSTILE: [{"single fact, chain2, test": 0.5}]}),
        made.retrofit({HOSTILE: [{8: 4.0, 16: 5.0}]}),
        made.timing({HOSTILE: {"rope": 10.0, HOSTILE: 11.0}}),
    ],
    ids=lambda results: results["experiment"],
)
def test_a_name_is_only_text(results: dict[str, Any], tmp_path: Path) -> None:
    write_report(saved(results, tmp_path))
    page = Page((tmp_path / "report.html").read_text())
    assert "script" not in page.tags
    assert HOSTILE in page.words
    prose = (tmp_path / "report.md").read_text().split("```")[::2]
    assert not any("<script>" in text or "| `a`" in text for text in prose)
    assert any("\\| \\`a\\`" in text for text in prose)


def test_a_missing_number_is_a_dash(tmp_path: Path) -> None:
    write_report(saved(made.growth(CURVES), tmp_path))
    assert "| rope | 4.10 ± 0.14 | – |" in (tmp_path / "report.md").read_text()


def test_the_same_result_makes_the_same_report(tmp_path: Path) -> None:
    path = saved(made.growth(CURVES), tmp_path)
    first, second = (write_report(path, tmp_path / name) for name in ("first", "second"))
    assert [file.name for file in first] == [file.name for file in second]
    assert all(one.read_bytes() == other.read_bytes() for one, other in zip(first, second, strict=True))


def test_what_has_no_numbers_yet_can_be_shown(tmp_path: Path) -> None:
    for results in (made.growth({}), made.facts({}), made.retrofit({}), made.timing({})):
        results["config"] |= {"variants": ["content"], "seeds": 1}
        assert main([str(saved(results, tmp_path))]) == 0
        assert "content, seed 0" in (tmp_path / "report.md").read_text()


def test_what_is_missing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = made.growth({**CURVES, "alibi": [{8: 5.0}]})
    write_report(saved(results, tmp_path))
    assert "alibi, seed 1" in (tmp_path / "report.html").read_text()
    assert main([str(tmp_path), "--out", str(tmp_path / "new" / "folder")]) == 0
    assert "alibi, seed 1" in capsys.readouterr().out
    assert (tmp_path / "new" / "folder" / "report.md").exists()


def test_settings_machine_and_command_are_told(tmp_path: Path) -> None:
    results = made.growth(CURVES)
    results["config"]["training"] = {"learning_rate": 3e-4, "steps": 5000}
    write_report(saved(results, tmp_path))
    text = (tmp_path / "report.md").read_text()
    for shown in ("| training.learning_rate | 0.0003 |", "| training.steps | 5,000 |", "| device | NVIDIA H200 |"):
        assert shown in text
    assert command(results) in text


@pytest.mark.parametrize("old", ["shakespeare", "context-growth", "growth"])
def test_an_experiment_has_one_name(old: str, tmp_path: Path) -> None:
    results = made.growth({"alibi:slopes=[1,2]": [{8: 4.0}]}) | {"experiment": old, "asked": ["--steps", "7"]}
    parts = shlex.split(command(read(saved(results, tmp_path))))
    assert parts[:6] == ["python", "-m", "experiments", "growth", "--steps", "7"]
    assert parts[6:8] == ["--variants", "alibi:slopes=[1,2]"]


def test_a_variant_that_is_gone_is_shown_but_not_asked_for(tmp_path: Path) -> None:
    gone = "content:competition=1,anchors=[0,1]"
    results = made.growth({gone: [{8: 4.0}], "content:competition=1": [{8: 5.0}]}) | {"asked": []}
    write_report(saved(results, tmp_path))
    assert "| content:competition=1,anchors=\\[0,1] | **4.00** |" in (tmp_path / "report.md").read_text()
    parts = shlex.split(command(results))
    assert parts[parts.index("--variants") + 1] == "content:competition=1"
    assert gone not in parts


def without(key: str, results: dict[str, Any] | None = None) -> dict[str, Any]:
    return {name: value for name, value in (results or made.growth(CURVES)).items() if name != key}


FOREIGN: dict[str, tuple[Any, str]] = {
    "another kind of file": ({"benchmark": "cpu", "results": {}}, "experiment"),
    "a list": ([1, 2], "experiment"),
    "another experiment": (made.growth(CURVES) | {"experiment": "cooking"}, "cooking"),
    "an experiment that is no name": (made.growth(CURVES) | {"experiment": ["growth"]}, "experiment"),
    "no settings": (without("config"), "config"),
    "no text": (without("corpus"), "corpus"),
    "no variants": (without("variants"), "variants"),
    "variants in a list": (made.growth(CURVES) | {"variants": [1]}, "list"),
    "runs of another experiment": (made.facts({"rope": [{}]}) | {"experiment": "growth"}, "lacks"),
    "a word for a number": (made.growth({"rope": [{8: "low"}]}), "str"),  # type: ignore[dict-item]
    "a length that is none": (made.growth({"rope": [{"eight": 4.0}]}), "eight"),  # type: ignore[dict-item]
    "rows missing": (made.timing({"85M": {"rope": 1.0}}) | {"experiment": "facts"}, "rows"),
    "times missing": (made.growth(CURVES) | {"experiment": "timing"}, "timings"),
}


@pytest.mark.parametrize(("results", "named"), FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_file_is_refused(
    results: Any, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(results, tmp_path)
    with pytest.raises(ResultError) as caught:
        write_report(path)
    for part in (str(path), named):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]
    assert main([str(path)]) == 2
    assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize("content", [b'{"experiment": "growth", ', b"\xff\xfe", b""])
def test_a_damaged_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(content)
    with pytest.raises(ResultError, match=r"results\.json"):
        write_report(path)


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"results\.json"):
        read(tmp_path)
