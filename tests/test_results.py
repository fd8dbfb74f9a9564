"""Result files are whole or absent, and say what JSON cannot hold."""

import json
import math
import os
from pathlib import Path

import pytest

from contentrope.errors import InputError
from contentrope.results import WAITING, environment, read_json, write_json


def test_what_is_written_is_read_back_and_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "results.json"
    data = {"loss": 1.25, "steps": 3, "names": ["é", None, True], "nested": {"x": []}}
    write_json(path, data)
    assert read_json(path) == data
    assert [file.name for file in path.parent.iterdir()] == ["results.json"]


@pytest.mark.parametrize("function", ["replace", "fsync"])
def test_a_failing_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    path = tmp_path / "results.json"
    write_json(path, {"old": 1})

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, function, fail)
    with pytest.raises(OSError, match="disk full"):
        write_json(path, {"new": 2})
    monkeypatch.undo()
    assert read_json(path) == {"old": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_outside_json_are_refused_by_key_path(tmp_path: Path, value: float) -> None:
    path = tmp_path / "results.json"
    write_json(path, {"old": 1})
    with pytest.raises(InputError, match=r"schemes\.rope\[1\] is -?(nan|inf)"):
        write_json(path, {"schemes": {"rope": [1.0, value]}})
    assert read_json(path) == {"old": 1}


@pytest.mark.parametrize(
    ("data", "message"), [({"a": {1: 2}}, r"a\[1\] has a key"), ({"a": Path("x")}, "a is a .*Path")]
)
def test_what_json_would_change_or_reject_is_refused(tmp_path: Path, data: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        write_json(tmp_path / "results.json", data)
    assert not list(tmp_path.iterdir())


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_json(path, {"a": list(range(50))})
    path.write_text(path.read_text()[:40])
    with pytest.raises(InputError, match=r"results\.json is truncated or not JSON .*line"):
        read_json(path)


def test_the_environment_fits_into_a_result_file(tmp_path: Path) -> None:
    here = environment()
    assert here["device"] == "cpu"
    assert here["threads"] >= 1
    assert here["cpu"]
    assert here["time"].endswith("+00:00")
    assert here["git"] is None or len(here["git"].removesuffix("-dirty")) >= 40
    assert json.loads(json.dumps(here)) == here


def test_the_environment_says_how_threads_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WAITING:
        monkeypatch.delenv(name, raising=False)
    assert environment()["waiting"] == "default"
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    monkeypatch.setenv("KMP_BLOCKTIME", "8")
    assert environment()["waiting"] == "GOMP_SPINCOUNT=7 KMP_BLOCKTIME=8"


def test_a_copied_source_may_name_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTENTROPE_COMMIT", "0" * 40)
    monkeypatch.setattr("contentrope.results._commit", lambda file: None)
    assert environment()["git"] == "0" * 40
    monkeypatch.setattr("contentrope.results._commit", lambda file: "1" * 40)
    assert environment()["git"] == "1" * 40, "what git says counts for more"


def test_json_nested_too_deep_is_named(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(InputError, match=r"deep\.json"):
        read_json(tmp_path / "deep.json")
