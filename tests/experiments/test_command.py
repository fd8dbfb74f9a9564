"""``python -m experiments growth`` and its report: presets, options, resuming, and the files they leave."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from contentrope.errors import InputError
from contentrope.results import read_json, write_json
from contentrope.training import TrainConfig
from contentrope.training.loop import Run
from contentrope.training.sizes import ModelSize
from experiments import report
from experiments.__main__ import main
from experiments.command import TITLES, parse
from experiments.docs_tables import ROOT
from experiments.growth.config import PRESETS, GrowthConfig
from experiments.results import EXPERIMENTS, read
from tests.cli.refusals import require_refused

TINY = GrowthConfig(
    variants=("content", "rope"),
    corpus="stdlib",
    characters=4_000,
    length=16,
    lengths=(16, 32),
    model=ModelSize(dim=8, layers=1, heads=2),
    training=TrainConfig(steps=20, batch_size=2, warmup=10),
)


@pytest.fixture(autouse=True)
def tiny_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "tiny", TINY)


@pytest.fixture(autouse=True)
def ctrl_c_interrupts() -> Iterator[None]:
    """Python's own handler, also where the tests run in the background and the shell ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def tiny(out: Path, *more: str) -> list[str]:
    """A run of seconds."""
    return ["growth", "--preset", "tiny", "--device", "cpu", "--out", str(out), *more]


def settings(*words: str, preset: str = "tiny") -> tuple[Any, str]:
    """What is run, and the name it is recorded under."""
    found: Any = parse(["growth", "--preset", preset, *words])
    return found.experiment.config, found.preset


# --- settings --------------------------------------------------------------------------------------------------


def test_every_experiment_is_told_of() -> None:
    assert tuple(TITLES) == EXPERIMENTS


def test_a_preset_is_taken_as_it_is() -> None:
    for name, config in PRESETS.items():
        assert settings(preset=name) == (config, name)
    assert settings("--preset=quick") == (PRESETS["quick"], "quick"), "the last counts"


def test_seeds_and_variants_keep_the_name_of_the_preset() -> None:
    assert settings("--seeds", "3", "--variants", "nope") == (replace(TINY, seeds=3, variants=("nope",)), "tiny")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("--steps 8", {"training": replace(TINY.training, steps=8, warmup=4)}),
        ("--steps 8 --warmup 1", {"training": replace(TINY.training, steps=8, warmup=1)}),
        ("--batch-size 4", {"training": replace(TINY.training, batch_size=4)}),
        ("--precision bf16", {"training": replace(TINY.training, precision="bf16")}),
        ("--schedule constant", {"training": replace(TINY.training, schedule="constant")}),
        ("--learning-rate 0.01", {"training": replace(TINY.training, learning_rate=0.01)}),
        ("--weight-decay 0.01", {"training": replace(TINY.training, weight_decay=0.01)}),
        ("--dim 16 --dropout 0.5", {"model": replace(TINY.model, dim=16, dropout=0.5)}),
        ("--lengths 8 64", {"lengths": (8, 64)}),
        ("--length 8 --search true", {"length": 8, "search": True}),
        ("--initialisation torch-all", {"initialisation": "torch-all"}),
        ("--distant 700", {"distant": 700}),
        ("--characters 5000", {"characters": 5_000}),
        ("--corpus book.txt", {"corpus": "book.txt", "characters": None}),
        ("--corpus book.txt --characters 9", {"corpus": "book.txt", "characters": 9}),
    ],
)
def test_whatever_changes_the_numbers_is_custom(change: str, expected: dict) -> None:
    assert settings(*change.split()) == (replace(TINY, **expected), "custom")


def test_a_change_to_what_the_preset_has_is_none() -> None:
    assert settings("--steps", "20", "--corpus", "stdlib", "--lengths", "16", "32") == (TINY, "tiny")


def test_an_unknown_preset_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match="unknown preset 'grand'; choose quick, paper"):
        settings(preset="grand")


@pytest.mark.parametrize("words", [[], ["gardening"], ["shakespeare"], ["--preset", "quick"]])
def test_an_unknown_experiment_is_refused_with_those_there_are(words: list[str]) -> None:
    with pytest.raises(InputError, match="growth, facts, retrofit, timing"):
        parse(words)


def test_a_value_like_an_option_is_repeated_as_a_value(tmp_path: Path) -> None:
    found: Any = parse(tiny(tmp_path, "--corpus=--book", "--once", "64", "128", "--search", "true"))
    again: Any = parse(["growth", *found.asked])
    assert again.experiment.config == found.experiment.config
    assert found.experiment.config.corpus == "--book"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--variants", "telepathy"], "unknown scheme 'telepathy'"),
        (["--variants", "content:kompetition=1"], "kompetition"),
        (["--variants"], "variants must name"),
        (["--steps", "0"], "steps must be"),
        (["--weight-decay", "-1"], "weight_decay must be"),
        (["--learning-rate", "0"], "learning_rate must be"),
        (["--seeds", "0"], "seeds must be"),
        (["--jobs", "0"], "jobs must be"),
        (["--lengths", "5000"], "do not fit"),
        (["--corpus", "nowhere.txt"], "'nowhere.txt'"),
        (["--device", "abacus"], "device 'abacus' cannot be used"),
    ],
)
def test_refused_settings_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    require_refused(main, tiny(tmp_path, *more), message, tmp_path, capsys)


def test_an_out_folder_that_is_a_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(tiny(tmp_path / "file")) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: nothing can be written to ")
    assert printed.out == ""  # refused before the first step


COMMITTED = [path for path in sorted((ROOT / "results").rglob("*.json")) if '"experiment"' in path.read_text()[:100]]


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_command_of_a_committed_result_asks_for_its_settings(path: Path) -> None:
    stored = read(path)
    found: Any = parse(shlex.split(report.command(stored))[3:])
    assert (found.experiment.name, found.preset) == (stored["experiment"], stored["preset"])
    again, before = json.loads(json.dumps(asdict(found.experiment.config))), stored["config"]
    assert changed(again, before) <= {"seeds", "variants"}


def changed(now: dict[str, Any], before: dict[str, Any]) -> set[str]:
    """Settings that both have, with another value; older files lack some."""
    both = {name: (now[name], before[name]) for name in now.keys() & before.keys()}
    return {name for name, (a, b) in both.items() if (changed(a, b) if isinstance(a, dict) else a != b)}


# --- runs ------------------------------------------------------------------------------------------------------


def test_results_are_written_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tiny(tmp_path, "--seeds", "2")) == 0
    results = read_json(tmp_path / "results.json")
    assert (results["preset"], results["config"]["seeds"]) == ("tiny", 2)
    printed = capsys.readouterr().out
    for variant in ("content", "rope"):
        values = [results["variants"][variant]["runs"][seed]["perplexity"]["32"] for seed in "01"]
        assert f"{sum(values) / 2:.2f} ± " in printed
        for seed, value in enumerate(values):
            assert f"{variant}, seed {seed}: perplexity " in printed
            assert f"{value:.2f} at 32 (" in printed
    assert "(4 of 4 runs done)" in printed
    assert "trained on windows of 16" in printed
    assert printed.count(", loss ") == 40  # a line per tenth and run, not per step
    for name in ("results.json", "report.md", "report.html"):
        assert f"written: {tmp_path / name}" in printed
        assert (tmp_path / name).exists()


def test_the_folder_is_named_after_the_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["growth", "--preset", "tiny", "--device", "cpu", "--variants", "rope"]
    assert main(words) == 0
    assert main([*words, "--steps", "4"]) == 0
    assert {path.name for path in Path("runs").iterdir()} == {"growth-tiny", "growth-custom"}
    assert read_json("runs/growth-custom/results.json")["preset"] == "custom"


def test_a_wide_table_is_never_cut_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long_name = "content:competition=1,frequencies=model_wide,base=50000"
    lengths = ["--lengths", *map(str, range(16, 32))]
    assert main(tiny(tmp_path, "--variants", long_name, "rope", "--steps", "2", *lengths)) == 0
    printed = capsys.readouterr().out
    assert any(len(line.split()) == 17 for line in printed.splitlines() if line.startswith(long_name))
    assert "…" not in printed


def test_a_second_run_does_not_train_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(tiny(tmp_path)) == 0
    before = (tmp_path / "results.json").read_bytes()
    monkeypatch.setattr(Run, "advance", lambda run: pytest.fail("trained again"))
    assert main(tiny(tmp_path)) == 0
    assert (tmp_path / "results.json").read_bytes() == before
    assert "rope: finished earlier, kept" in capsys.readouterr().out


def test_ctrl_c_says_how_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    advance, presses = Run.advance, []

    def press(run: Run) -> None:
        advance(run)
        if run.step == 7 and not presses and (tmp_path / "results.json").exists():
            presses.append(run.step)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Run, "advance", press)
    assert main(tiny(tmp_path)) == 130
    captured = capsys.readouterr()
    assert shlex.join(["python", "-m", "experiments", *tiny(tmp_path)]) in captured.err
    assert f"python -m experiments.report {tmp_path}" in captured.out
    assert [path.name for path in tmp_path.glob("runs/rope/seed-0/checkpoint/*")] == ["step-00000007"]
    assert report.main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "content" in printed
    assert "not finished yet: rope, seed 0" in printed
    assert main(tiny(tmp_path)) == 0
    assert "not finished" not in capsys.readouterr().out


# --- report ----------------------------------------------------------------------------------------------------


def test_a_report_can_be_made_anywhere_and_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tiny(tmp_path / "run", "--variants", "rope")) == 0
    results = read_json(tmp_path / "run" / "results.json")
    write_json(tmp_path / "copy.json", results)
    assert report.main([str(tmp_path / "copy.json"), "--out", str(tmp_path / "elsewhere")]) == 0
    assert (tmp_path / "elsewhere" / "report.html").exists()
    write_json(tmp_path / "empty.json", {**results, "variants": {}})
    capsys.readouterr()
    assert report.main([str(tmp_path / "empty.json")]) == 0
    assert "not finished yet: rope, seed 0" in capsys.readouterr().out


def test_a_folder_without_results_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main([str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert str(tmp_path / "results.json") in error
    assert len(error.splitlines()) == 1


def test_the_report_says_how_to_repeat_exactly_this(tmp_path: Path) -> None:
    changed = ["--steps", "8", "--lengths", "16", "64", "--batch-size", "3"]
    assert main(tiny(tmp_path, "--variants", "rope", *changed)) == 0
    assert main(tiny(tmp_path, "--variants", "content:competition=1", "--seeds", "2", *changed)) == 0
    line = next(
        x for x in (tmp_path / "report.md").read_text().splitlines() if x.startswith("python -m experiments growth")
    )
    repeated = tmp_path / "again"
    words = shlex.split(line)[3:]
    words[words.index("--out") + 1] = str(repeated)
    assert main([*words, "--device", "cpu"]) == 0
    first, again = (read_json(folder / "results.json") for folder in (tmp_path, repeated))
    assert again["config"] == first["config"]
    assert again["variants"].keys() == {"rope", "content:competition=1"}
