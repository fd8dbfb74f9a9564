"""``python -m experiments retrofit``: its options, and a run with one's own checkpoint."""

from __future__ import annotations

import importlib.util
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contentrope.errors import InputError
from contentrope.results import read_json
from experiments.__main__ import main
from experiments.command import parse, presets_of

if not importlib.util.find_spec("transformers"):
    pytest.skip("needs transformers", allow_module_level=True)

from tests.cli.refusals import require_refused
from tests.experiments.retrofit.tiny import TINY, saved_original


@pytest.fixture(autouse=True)
def tiny_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(presets_of("retrofit"), "tiny", TINY)


def tiny(out: Path, *more: str) -> list[str]:
    return ["retrofit", "--preset", "tiny", "--device", "cpu", "--out", str(out), *more]


def settings(*words: str, preset: str = "tiny") -> tuple[Any, str]:
    found: Any = parse(["retrofit", "--preset", preset, *words])
    return found.experiment.config, found.preset


def test_a_preset_is_taken_as_it_is() -> None:
    for name, config in presets_of("retrofit").items():
        assert settings(preset=name) == (config, name)
    with pytest.raises(InputError, match="unknown preset 'beyond'; choose quick, paper"):
        settings(preset="beyond")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("--steps 2", {"training": replace(TINY.training, steps=2)}),
        ("--learning-rate 0.5", {"training": replace(TINY.training, learning_rate=0.5)}),
        ("--original-steps 10", {"pretraining": replace(TINY.pretraining, steps=10, warmup=1)}),
        (
            "--batch-size 4",
            {
                "training": replace(TINY.training, batch_size=4),
                "pretraining": replace(TINY.pretraining, batch_size=4),
            },
        ),
        (
            "--batch-size 4 --original-batch-size 8",
            {
                "training": replace(TINY.training, batch_size=4),
                "pretraining": replace(TINY.pretraining, batch_size=8),
            },
        ),
        ("--model there", {"model": "there"}),
        ("--text a.txt b.txt", {"text": ("a.txt", "b.txt"), "characters": None}),
        ("--text a.txt --characters 9", {"text": ("a.txt",), "characters": 9}),
        ("--units sentence --length 8 --times 2", {"units": "sentence", "length": 8, "times": (2,)}),
        ("--units record --marker=--", {"units": "record", "marker": "--"}),
    ],
)
def test_whatever_changes_the_numbers_is_custom(change: str, expected: dict) -> None:
    assert settings(*change.split()) == (replace(TINY, **expected), "custom")


def test_ones_own_checkpoint_and_how_to_repeat_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved_original(tmp_path / "mine")
    (tmp_path / "text.txt").write_text("abc de\nfgh\nab\n" * 400)
    out = tmp_path / "out"
    assert main(tiny(out, "--model", str(folder), "--text", str(tmp_path / "text.txt"))) == 0
    printed = capsys.readouterr().out
    results = read_json(out / "results.json")
    value = results["variants"]["content:positions=gated"]["runs"]["0"]["perplexity"]["64"]
    assert f"{value:.2f} at 64" in printed
    assert "Perplexity by tokens read" in printed
    for name in ("results.json", "report.md", "report.html", "curve.svg"):
        assert f"written: {out / name}" in printed
    lines = (out / "report.md").read_text().splitlines()
    words = shlex.split(next(line for line in lines if line.startswith("python -m experiments retrofit")))[3:]
    words[words.index("--out") + 1] = str(tmp_path / "again")
    assert main([*words, "--device", "cpu"]) == 0
    assert read_json(tmp_path / "again" / "results.json")["config"] == results["config"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--variants", "alibi"], "no conversion 'alibi'"),
        (["--model", __file__], "is a file"),
        (["--model", "/nowhere/model"], "there is no folder '/nowhere/model'"),
        (["--text", "nowhere.txt"], "there is no file or folder 'nowhere.txt'"),
        (["--units", "verse"], "units 'verse' is no kind of text"),
        (["--length", "300"], "do not fit"),
    ],
)
def test_refused_settings_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    require_refused(main, tiny(tmp_path, *more), message, tmp_path, capsys)
