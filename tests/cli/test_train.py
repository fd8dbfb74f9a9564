"""``contentrope train``: what it writes, how it goes on, and what it refuses."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import contentrope as cr
from contentrope.cli import main
from contentrope.corpora import load_corpus
from contentrope.evaluation.perplexity import perplexity
from contentrope.results import read_json, write_json
from contentrope.text_model import load_text_model
from contentrope.training import read_metrics
from contentrope.training.loop import Run

SIZES = ["--dim", "8", "--layers", "1", "--heads", "2", "--length", "16", "--steps", "20", "--batch-size", "2"]


def words(text: Path, out: Path, *more: str) -> list[str]:
    return ["train", "--text", str(text), "--out", str(out), "--device", "cpu", *SIZES, *more]


def weights(out: Path) -> dict[str, torch.Tensor]:
    return cr.load(out / "model").state_dict()


def test_everything_about_a_run_is_written(text: Path, trained: Path) -> None:
    found = read_json(trained / "train.json")
    corpus = load_corpus(text)
    assert found["corpus"] == corpus.description
    assert (found["variant"], found["length"], found["seed"], found["processes"]) == ("content", 16, 0, 1)
    assert found["train"]["steps"] == 20
    assert found["train"]["learning_rate"] == 3e-4
    assert found["model"]["dim"] == 8
    assert found["environment"]["torch"] == torch.__version__
    model, vocabulary = load_text_model(trained)
    assert vocabulary == corpus.vocabulary
    assert found["held_out_perplexity"] == pytest.approx(perplexity(model, corpus.held_out, 16), rel=1e-6)
    assert found["final_loss"] == pytest.approx(read_metrics(trained / "metrics.jsonl")[-1]["loss"])
    assert {path.name for path in trained.iterdir()} == {"model", "metrics.jsonl", "train.json", ".contentrope"}


def test_the_model_is_the_one_asked_for(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--variant", "content:competition=1,base=500", "--dropout", "0.1", "--accumulate", "2", "--seed", "7"]
    assert main(words(text, tmp_path / "run", *more, "--characters", "9000", "--tensorboard")) == 0
    model, _ = load_text_model(tmp_path / "run")
    assert (model.config.options, model.config.rotary.base, model.config.dropout) == ({"competition": 1}, 500, 0.1)
    found = read_json(tmp_path / "run" / "train.json")
    assert (found["seed"], found["train"]["accumulate"], found["corpus"]["characters"]) == (7, 2, 9000)
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    printed = capsys.readouterr().out
    assert f"held-out perplexity {found['held_out_perplexity']:.2f}" in printed
    assert printed.count("tokens/s") == 10


def test_ctrl_c_then_the_same_command_ends_like_a_run_in_one_piece(
    text: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    advance = Run.advance

    def press(run: Run) -> None:
        advance(run)
        if run.step == 7:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Run, "advance", press)
    assert main(words(text, tmp_path)) == 130
    assert shlex.join(["contentrope", *words(text, tmp_path)]) in capsys.readouterr().err
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == ["step-00000007"]
    assert main(words(text, tmp_path, "--steps", "30")) == 2
    assert "train.steps: 30 here, 20 in the file" in capsys.readouterr().err
    assert main(words(text, tmp_path, "--length", "8")) == 2
    assert "length: 8 here, 16 in the file" in capsys.readouterr().err
    assert main(words(text, tmp_path)) == 0
    expected = weights(trained)
    assert all(torch.equal(value, expected[name]) for name, value in weights(tmp_path).items())
    assert not (tmp_path / "checkpoint").exists()
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [10, 20]


def test_a_finished_run_is_neither_repeated_nor_changed(
    text: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained, tmp_path / "run")
    monkeypatch.setattr(Run, "advance", lambda run: pytest.fail("trained again"))
    before = (tmp_path / "run" / "train.json").read_bytes()
    assert main(words(text, tmp_path / "run")) == 0
    assert "is finished already" in capsys.readouterr().out
    assert main(words(text, tmp_path / "run", "--steps", "30", "--variant", "rope")) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "another finished run" in error
    assert "train.steps: 30 here, 20 in the file" in error
    assert "variant: 'rope' here, 'content' in the file" in error
    assert (tmp_path / "run" / "train.json").read_bytes() == before


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--variant", "telepathy"], "unknown scheme 'telepathy'"),
        (["--variant", "content:kompetition=1"], "kompetition"),
        (["--heads", "3"], "dim 8 is not divisible by heads 3"),
        (["--steps", "0"], "steps must be an integer of at least 1"),
        (["--accumulate", "3"], "batch_size 2 does not divide"),
        (["--learning-rate", "-1"], "learning_rate must be positive"),
        (["--save-every", "0"], "save_every must be at least 1"),
        (["--length", "5000"], "too few for a window of length 5000"),
        (["--length", "0"], "length must be an integer of at least 1"),
        (["--text", "nowhere.txt"], "there is no file or folder 'nowhere.txt'"),
        (["--acceleration", "graphs"], "needs a CUDA device"),
        (["--device", "abacus"], "device 'abacus' cannot be used"),
        (["--seed", str(2**64)], "less than 2**63"),
        (["--out", __file__], f"{Path(__file__).name} is not a folder"),
        (["--out", f"{__file__}/deeper/run"], f"{Path(__file__).name} is not a folder"),
    ],
)
def test_refused_settings_are_one_line(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert main(words(text, tmp_path, *more)) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_text_of_one_line_is_refused_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one.txt").write_text("to be or not to be " * 100)
    assert main(words(tmp_path / "one.txt", tmp_path / "run")) == 2
    assert "has no line break" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_characters_the_training_part_lacks_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("to be or not\n" * 100 + "tö bé\n")
    assert main(words(tmp_path / "text.txt", tmp_path / "run", "--steps", "1")) == 0
    assert "2 of 131 held-out characters do not occur in the training part" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["[]", "{}", "{"])
def test_a_train_json_of_something_else_is_one_line(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    (tmp_path / "train.json").write_text(content)
    assert main(words(text, tmp_path)) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert len(error.splitlines()) == 1
    assert (tmp_path / "train.json").read_text() == content


@pytest.mark.parametrize(
    "change", [{"parameters": None}, {"final_loss": "low"}, {"held_out_perplexity": []}, {"final_loss": ...}]
)
def test_a_train_json_that_lost_something_is_one_line(
    text: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict
) -> None:
    out = Path(shutil.copytree(trained, tmp_path / "run"))
    found = {**read_json(out / "train.json"), **change}
    write_json(out / "train.json", {name: value for name, value in found.items() if value is not ...})
    assert main(words(text, out)) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert str(out / "train.json") in error
    assert len(error.splitlines()) == 1


def test_a_run_whose_reader_is_gone_is_saved(text: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "contentrope", *words(text, tmp_path, "--steps", "2000")]
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as running:
        assert running.stdout is not None and running.stderr is not None  # noqa: PT018
        running.stdout.close()
        error = running.stderr.read().decode()
        assert running.wait() == 130
    assert "run the same command again" in error
    assert "Traceback" not in error
    assert list((tmp_path / "checkpoint").glob("step-*"))


def test_training_that_diverges_is_one_line(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words(text, tmp_path, "--learning-rate", "1e30", "--variant", "rope")) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: step ")
    assert "learning_rate" in error


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed")
def test_several_processes_train_one_model(text: Path, trained: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [*launch, "-m", "contentrope", *words(text, tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("tokens/s") == 10, "one of them reports"
    assert read_json(tmp_path / "train.json")["processes"] == 2
    expected = weights(trained)
    for name, value in weights(tmp_path).items():  # float32 sums in another order, 20 updates of at most 3e-4
        torch.testing.assert_close(value, expected[name], atol=1e-4, rtol=0)
