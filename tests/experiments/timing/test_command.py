"""``python -m experiments timing``: options of its own, and none that would do nothing."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contentrope.errors import InputError
from contentrope.results import read_json
from experiments.__main__ import main
from experiments.command import parse
from experiments.timing.config import PRESETS
from tests.cli.refusals import require_refused
from tests.experiments.timing.tiny import TINY


@pytest.fixture(autouse=True)
def tiny_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "tiny", TINY)


def tiny(out: Path, *more: str) -> list[str]:
    return ["timing", "--preset", "tiny", "--device", "cpu", "--out", str(out), *more]


def settings(*words: str, preset: str = "tiny") -> tuple[Any, str]:
    found: Any = parse(["timing", "--preset", preset, *words])
    return found.experiment.config, found.preset


def test_a_preset_is_taken_as_it_is() -> None:
    for name, config in PRESETS.items():
        assert settings(preset=name) == (config, name)


def test_rows_and_repetitions_keep_the_name_of_the_preset() -> None:
    found = settings("--seeds", "3", "--variants", "85M at 8192")
    assert found == (replace(TINY, seeds=3, variants=("85M at 8,192",)), "tiny")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("--schemes random", {"schemes": ("random",)}),
        ("--accelerations none compile", {"accelerations": ("none", "compile")}),
        ("--backend tiled", {"backend": "tiled"}),
        ("--rotary compiled", {"rotary": "compiled"}),
        ("--precision bf16", {"precision": "bf16"}),
        ("--timed-steps 4", {"timed_steps": 4}),
        ("--warmup-steps 1", {"warmup_steps": 1}),
        ("--unit-length 9", {"unit_length": 9}),
    ],
)
def test_whatever_changes_the_numbers_is_custom(change: str, expected: dict) -> None:
    assert settings(*change.split()) == (replace(TINY, **expected), "custom")


def test_an_unknown_preset_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match="unknown preset 'beyond'; choose quick, paper"):
        settings(preset="beyond")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--jobs", "2"], "would disturb each other, got 2 jobs"),
        (["--variants", "7B"], "unknown row '7B'"),
        (["--schemes", "rope"], "rope is what schemes are compared with"),
        (["--schemes", "content:kompetition=1"], "kompetition"),
        (["--accelerations", "warp"], "unknown acceleration 'warp'"),
        (["--accelerations", "graphs"], "warmup_steps must be above 3, got 2"),
        (["--timed-steps", "0"], "timed_steps must be"),
    ],
)
def test_refused_settings_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    require_refused(main, tiny(tmp_path, *more), message, tmp_path, capsys)


@pytest.mark.parametrize("option", ["--steps", "--batch-size"])
def test_options_of_training_are_not_taken(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["timing", option, "3"])
    assert stop.value.code == 2
    assert option in capsys.readouterr().err


def test_results_are_printed_written_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = tiny(tmp_path, "--variants", "0.8M at 8", "--schemes", "content")
    assert main(words) == 0
    printed = capsys.readouterr().out
    timings = read_json(tmp_path / "results.json")["variants"]["0.8M at 8"]["runs"]["0"]["timings"]["none"]
    more = timings["content"]["overhead_percent"]
    assert f"0.8M at 8: eager: rope {timings['rope']['median_ms']:.1f} ms, content {more:+.1f}%" in printed
    assert "Milliseconds of the median step" in printed
    assert "8 × 8" in printed
    for name in ("results.json", "report.md", "report.html"):
        assert f"written: {tmp_path / name}" in printed
    before = (tmp_path / "results.json").read_bytes()
    assert main(words) == 0
    assert (tmp_path / "results.json").read_bytes() == before
    assert "0.8M at 8: finished earlier, kept" in capsys.readouterr().out


def test_the_report_says_how_to_repeat_exactly_this(tmp_path: Path) -> None:
    changed = ["--schemes", "content", "--timed-steps", "1", "--warmup-steps", "1"]
    assert main(tiny(tmp_path, "--variants", "0.8M at 4", *changed)) == 0
    line = next(
        x for x in (tmp_path / "report.md").read_text().splitlines() if x.startswith("python -m experiments timing")
    )
    words = shlex.split(line)[3:]
    assert words[words.index("--variants") + 1] == "0.8M at 4"
    words[words.index("--out") + 1] = str(tmp_path / "again")
    assert main([*words, "--device", "cpu"]) == 0
    first, again = (read_json(folder / "results.json") for folder in (tmp_path, tmp_path / "again"))
    assert again["config"] == first["config"]
