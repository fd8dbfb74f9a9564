"""``contentrope reproduce shakespeare`` and ``contentrope report``: presets, resuming, and the files they leave."""

from __future__ import annotations

import shlex
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from contentrope.cli import main
from contentrope.cli.reproduce import Shakespeare
from contentrope.errors import InputError
from contentrope.experiments.growth import PRESETS, GrowthConfig, ModelSize
from contentrope.results import read_json, write_json
from contentrope.training import TrainConfig
from contentrope.training.run import Run
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


def tiny(out: Path, *more: str) -> list[str]:
    """A run of seconds."""
    return ["reproduce", "shakespeare", "--preset", "tiny", "--device", "cpu", "--out", str(out), *more]


# --- settings --------------------------------------------------------------------------------------------------


def test_a_preset_is_taken_as_it_is() -> None:
    for name, config in PRESETS.items():
        assert Shakespeare(preset=name).settings() == (config, name)


def test_seeds_and_variants_keep_the_name_of_the_preset() -> None:
    config, name = Shakespeare(preset="tiny", seeds=3, variants=("nope",)).settings()
    assert (config, name) == (replace(TINY, seeds=3, variants=("nope",)), "tiny")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"steps": 8}, {"training": replace(TINY.training, steps=8, warmup=4)}),
        ({"batch_size": 4}, {"training": replace(TINY.training, batch_size=4)}),
        ({"precision": "bf16"}, {"training": replace(TINY.training, precision="bf16")}),
        ({"schedule": "constant"}, {"training": replace(TINY.training, schedule="constant")}),
        ({"learning_rate": 0.01}, {"training": replace(TINY.training, learning_rate=0.01)}),
        ({"weight_decay": 0.01}, {"training": replace(TINY.training, weight_decay=0.01)}),
        ({"lengths": (8, 64)}, {"lengths": (8, 64)}),
        ({"distant": 700}, {"distant": 700}),
        ({"characters": 5_000}, {"characters": 5_000}),
        ({"corpus": "book.txt"}, {"corpus": "book.txt", "characters": None}),
        ({"corpus": "book.txt", "characters": 9}, {"corpus": "book.txt", "characters": 9}),
    ],
)
def test_whatever_changes_the_numbers_is_custom(change: dict, expected: dict) -> None:
    assert Shakespeare(preset="tiny", **change).settings() == (replace(TINY, **expected), "custom")


def test_a_change_to_what_the_preset_has_is_none() -> None:
    assert Shakespeare(preset="tiny", steps=20, corpus="stdlib", lengths=(16, 32)).settings() == (TINY, "tiny")


def test_an_unknown_preset_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match="unknown preset 'grand'; choose quick, paper"):
        Shakespeare(preset="grand").settings()


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
        (["--corpus", "nowhere.txt"], "no corpus 'nowhere.txt'"),
        (["--device", "abacus"], "device 'abacus' cannot be used"),
    ],
)
def test_refused_settings_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    require_refused(tiny(tmp_path, *more), message, tmp_path, capsys)


def test_an_out_folder_that_is_a_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(tiny(tmp_path / "file")) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: nothing can be written to ")
    assert printed.out == ""  # refused before the first step


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
    assert "windows of 16 characters" in printed
    assert printed.count("loss") == 40  # a line per tenth and run, not per step
    for name in ("results.json", "report.md", "report.html"):
        assert f"written: {tmp_path / name}" in printed
        assert (tmp_path / name).exists()


def test_the_folder_is_named_after_the_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "shakespeare", "--preset", "tiny", "--device", "cpu", "--variants", "rope"]
    assert main(words) == 0
    assert main([*words, "--steps", "4"]) == 0
    assert {path.name for path in Path("runs").iterdir()} == {"shakespeare-tiny", "shakespeare-custom"}
    assert read_json("runs/shakespeare-custom/results.json")["preset"] == "custom"


def test_a_wide_table_is_never_cut_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long_name = "content:competition=1,frequencies=model_wide,base=50000"
    lengths = ["--lengths", *map(str, range(16, 32))]
    assert main(tiny(tmp_path, "--variants", long_name, "rope", "--steps", "2", *lengths)) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.strip().startswith(long_name) and ":" in line]
    assert len(rows[-1].split()) == 17
    assert "…" not in rows[-1]


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
    assert shlex.join(["contentrope", *tiny(tmp_path)]) in captured.err
    assert f"contentrope report {tmp_path}" in captured.out
    assert [path.name for path in tmp_path.glob("runs/rope/seed-0/checkpoint/*")] == ["step-00000007"]
    assert main(["report", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "content" in printed
    assert "Not finished yet: rope, seed 0." in printed
    assert main(tiny(tmp_path)) == 0
    assert "Not finished" not in capsys.readouterr().out


# --- report ----------------------------------------------------------------------------------------------------


def test_a_report_can_be_made_anywhere_and_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tiny(tmp_path / "run", "--variants", "rope")) == 0
    results = read_json(tmp_path / "run" / "results.json")
    write_json(tmp_path / "copy.json", results)
    assert main(["report", str(tmp_path / "copy.json"), "--out", str(tmp_path / "elsewhere")]) == 0
    assert (tmp_path / "elsewhere" / "report.html").exists()
    write_json(tmp_path / "empty.json", {**results, "variants": {}})
    capsys.readouterr()
    assert main(["report", str(tmp_path / "empty.json")]) == 0
    assert "Not finished yet: rope, seed 0." in capsys.readouterr().out


def test_a_folder_without_results_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: no results.json in {tmp_path}")


def test_the_report_says_how_to_repeat_exactly_this(tmp_path: Path) -> None:
    changed = ["--steps", "8", "--lengths", "16", "64", "--batch-size", "3"]
    assert main(tiny(tmp_path, "--variants", "rope", *changed)) == 0
    assert main(tiny(tmp_path, "--variants", "content:competition=1", "--seeds", "2", *changed)) == 0
    line = next(x for x in (tmp_path / "report.md").read_text().splitlines() if x.startswith("contentrope reproduce"))
    repeated = tmp_path / "again"
    words = shlex.split(line)[1:]
    words[words.index("--out") + 1] = str(repeated)
    assert main([*words, "--device", "cpu"]) == 0
    first, again = (read_json(folder / "results.json") for folder in (tmp_path, repeated))
    assert again["config"] == first["config"]
    assert again["variants"].keys() == {"rope", "content:competition=1"}
