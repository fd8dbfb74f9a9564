"""What commands may write over, with whom they share a folder, and what they say of a full disk."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import contentrope as cr
from contentrope.cli import main
from contentrope.results import read_json, write_json
from contentrope.training.loop import Run
from experiments import __main__ as experiments
from experiments import report
from experiments.growth.config import PRESETS
from tests.cli.conftest import SIZES
from tests.experiments.growth.runs import TINY


def train(text: Path, out: Path, *more: str) -> list[str]:
    return ["train", "--text", str(text), "--out", str(out), "--device", "cpu", *SIZES, *more]


def growth(out: Path, *more: str) -> list[str]:
    return ["growth", "--preset", "tiny", "--device", "cpu", "--out", str(out), *more]


@pytest.fixture(autouse=True)
def tiny_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "tiny", TINY)


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "advance", lambda run: pytest.fail("work was done first"))


def tree(folder: Path) -> dict[str, bytes]:
    """All files but those of a record."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if ".contentrope" not in Path(name).parts}


def require_refused(
    words: list[str],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    *said: object,
    program: Callable[[list[str]], int] = main,
) -> None:
    before = tree(folder)
    capsys.readouterr()
    assert program(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert len(error.splitlines()) == 1
    for word in said:
        assert str(word) in error
    assert tree(folder) == before


# --- somebody else's files -----------------------------------------------------------------------------------------


@pytest.fixture
def pretrained(tmp_path: Path) -> Path:
    """A folder with a Hugging Face checkpoint in it."""
    if not importlib.util.find_spec("transformers"):
        pytest.skip("needs transformers")
    from tests.experiments.retrofit.tiny import saved_original

    saved_original(tmp_path / "p" / "model")
    return tmp_path / "p"


def finetune(model: Path, text: Path, out: Path, *more: str) -> list[str]:
    sizes = ["--length", "16", "--steps", "6", "--batch-size", "2", "--warmup", "1"]
    return ["finetune", "--model", str(model), "--text", str(text), "--out", str(out), "--device", "cpu", *sizes, *more]


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    (tmp_path / "letters.txt").write_text("abc de\nfgh\nab\n" * 150)
    return tmp_path / "letters.txt"


@pytest.mark.usefixtures("no_training")
def test_finetune_does_not_write_over_the_model_it_reads(
    pretrained: Path, letters: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = finetune(pretrained / "model", letters, pretrained)
    require_refused(words, pretrained, capsys, pretrained / "model")


@pytest.mark.usefixtures("no_training")
def test_nor_over_another_model(
    pretrained: Path, letters: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(pretrained, tmp_path / "q")
    for words in (finetune(pretrained / "model", letters, tmp_path / "q"), train(letters, tmp_path / "q")):
        require_refused(words, tmp_path / "q", capsys, tmp_path / "q" / "model")


@pytest.mark.usefixtures("no_training")
def test_nor_over_what_train_wrote(
    trained: Path, pretrained: Path, letters: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path(shutil.copytree(trained, tmp_path / "run"))
    require_refused(finetune(pretrained / "model", letters, out), out, capsys, out / "model")


def test_a_checkpoint_beside_is_no_obstacle(pretrained: Path, letters: Path) -> None:
    before = tree(pretrained)
    (pretrained / "model").rename(pretrained / "base")
    assert main(finetune(pretrained / "base", letters, pretrained)) == 0
    assert {name: data for name, data in tree(pretrained).items() if name.startswith("base/")} == {
        name.replace("model/", "base/", 1): data for name, data in before.items()
    }


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize("name", ["model/weights.bin", "metrics.jsonl", "train.json"])
def test_train_refuses_files_that_it_did_not_write(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"step": 1, "mine": 2}\n')
    require_refused(train(text, tmp_path), tmp_path, capsys, tmp_path if name == "train.json" else tmp_path / name)
    assert not (tmp_path / ".contentrope").exists()


def test_a_model_that_was_changed_is_not_replaced_and_one_that_was_not_is(
    text: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path(shutil.copytree(trained, tmp_path / "run"))
    (out / "train.json").unlink()
    vocabulary = (out / "model" / "vocabulary.json").read_bytes()
    (out / "model" / "vocabulary.json").write_bytes(vocabulary + b" ")
    require_refused(train(text, out, "--steps", "12"), out, capsys, out / "model" / "vocabulary.json")
    (out / "model" / "vocabulary.json").write_bytes(vocabulary)
    assert main(train(text, out, "--steps", "12")) == 0
    assert read_json(out / "train.json")["train"]["steps"] == 12


def test_a_text_that_would_be_written_over_is_refused(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(text, tmp_path / "metrics.jsonl")
    require_refused(train(tmp_path / "metrics.jsonl", tmp_path), tmp_path, capsys, tmp_path / "metrics.jsonl")


def test_a_checkpoint_folder_of_somebody_elses_stays(text: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoint" / "best").mkdir(parents=True)
    (tmp_path / "checkpoint" / "best" / "weights.bin").write_text("precious")
    assert main(train(text, tmp_path)) == 0
    assert tree(tmp_path / "checkpoint") == {"best/weights.bin": b"precious"}


def test_evaluate_writes_over_its_own_results_only(
    text: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["evaluate", str(trained), "--text", str(text), "--lengths", "16", "--device", "cpu"]
    out = tmp_path / "numbers.json"
    assert main([*words, "--out", str(out)]) == 0
    first = read_json(out)
    assert main([*words, "--seed", "3", "--out", str(out)]) == 0
    assert (first["settings"]["seed"], read_json(out)["settings"]["seed"]) == (0, 3)
    monkeypatch.setattr("contentrope.cli.evaluate.perplexity", lambda *_, **__: pytest.fail("work was done first"))
    for content in ("precious", "{}", "[]", (trained / "train.json").read_text()):
        out.write_text(content)
        require_refused([*words, "--out", str(out)], tmp_path, capsys, out)


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize("name", ["results.json", "report.md", "report.html", "runs/rope/seed-0/model/config.json"])
def test_an_experiment_refuses_files_that_it_did_not_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
    (tmp_path / name).write_text("{}")
    require_refused(growth(tmp_path), tmp_path, capsys, tmp_path / name, program=experiments.main)


def test_a_report_is_written_over_its_own_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert experiments.main(growth(out, "--variants", "rope")) == 0
    assert experiments.main(growth(out, "--variants", "content")) == 0
    assert report.main([str(out)]) == 0
    page = (out / "report.html").read_bytes()
    (out / "report.html").write_text("my notes")
    require_refused([str(out)], out, capsys, out / "report.html", program=report.main)
    (out / "report.html").write_bytes(page)
    assert report.main([str(out)]) == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "report.md").write_text("my notes")
    require_refused([str(out), "--out", str(tmp_path / "mine")], tmp_path, capsys, "report.md", program=report.main)


def test_results_of_an_earlier_version_are_known_by_what_they_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have no record of what was written."""
    assert experiments.main(growth(tmp_path, "--variants", "rope")) == 0
    shutil.rmtree(tmp_path / ".contentrope")
    before = (tmp_path / "results.json").read_bytes()
    monkeypatch.setattr(Run, "advance", lambda run: pytest.fail("trained again"))
    assert experiments.main(growth(tmp_path, "--variants", "rope")) == 0
    assert (tmp_path / "results.json").read_bytes() == before
    monkeypatch.undo()
    monkeypatch.setitem(PRESETS, "tiny", TINY)
    shutil.rmtree(tmp_path / ".contentrope")
    page = (tmp_path / "report.md").read_bytes()
    (tmp_path / "report.md").write_bytes(page + b"my notes")
    words = growth(tmp_path, "--variants", "rope", "alibi")
    require_refused(words, tmp_path, capsys, tmp_path / "report.md", program=experiments.main)
    (tmp_path / "report.md").write_bytes(page)
    assert experiments.main(growth(tmp_path, "--variants", "rope", "alibi")) == 0
    assert set(read_json(tmp_path / "results.json")["variants"]) == {"rope", "alibi"}


# --- one command at a time -----------------------------------------------------------------------------------------


def started(words: list[str], **options: Any) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "contentrope", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, **options)


@pytest.mark.slow
def test_a_second_command_is_refused_and_one_after_a_kill_goes_on(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = train(text, out, "--steps", "300", "--save-every", "20")
    whole = tmp_path / "whole"
    assert main(train(text, whole, "--steps", "300", "--save-every", "20")) == 0
    with started(words) as first:
        assert first.stdout is not None
        first.stdout.readline()
        while not list(out.glob("checkpoint/step-*")):
            assert first.poll() is None
        first.send_signal(signal.SIGSTOP)
        assert main(words) == 2
        error = capsys.readouterr().err
        assert len(error.splitlines()) == 1
        for word in (str(out), str(first.pid), "contentrope train"):
            assert word in error
        first.send_signal(signal.SIGKILL)
    (out / ".contentrope" / "run.tmp" / ".model.half").mkdir()
    (out / "checkpoint" / ".writing").mkdir(exist_ok=True)
    assert main(words) == 0
    expected = cr.load(whole / "model").state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in cr.load(out / "model").state_dict().items())
    assert {path.name for path in out.iterdir()} == {"model", "metrics.jsonl", "train.json", ".contentrope"}
    assert {path.name for path in (out / ".contentrope").iterdir()} == {"written.jsonl", "run.lock"}


def test_a_report_can_be_made_while_the_experiment_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    advance, statuses = Run.advance, []

    def show(run: Run) -> None:
        advance(run)
        if (tmp_path / "results.json").exists():
            statuses.append(report.main([str(tmp_path)]))

    monkeypatch.setattr(Run, "advance", show)
    assert experiments.main(growth(tmp_path)) == 0
    assert set(statuses) == {0}


# --- full disks ----------------------------------------------------------------------------------------------------

LIMITED = """
import resource, sys
from contentrope.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.exit(main(sys.argv[2:]))
"""


def limited(size: int, words: list[str]) -> tuple[int, str]:
    """A command that can write no file larger than ``size``, and what it says."""
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", LIMITED, str(size), *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("size", "what"), [(600, "run"), (5_000, "step-00000010")])
def test_files_that_cannot_grow_are_one_line_and_the_command_goes_on_later(
    text: Path, trained: Path, tmp_path: Path, size: int, what: str
) -> None:
    words = train(text, tmp_path / "run", "--save-every", "10")
    status, error = limited(size, words)
    assert status == 2
    assert error.startswith("error: ")
    assert len(error.splitlines()) == 1
    assert what in error
    assert main(words) == 0
    expected = cr.load(trained / "model").state_dict()
    assert all(
        torch.equal(value, expected[name]) for name, value in cr.load(tmp_path / "run" / "model").state_dict().items()
    )


PLACES: dict[str, Callable[[Path, Path], list[str]]] = {
    "metrics.jsonl": train,
    "checkpoint": train,
    "model": train,
    "train.json": train,
    "results.json": lambda text, out: growth(out),
    "report.md": lambda text, out: growth(out),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_full_disk_is_one_line_wherever_it_is_met(
    text: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import errno

    from contentrope import files

    words, full, write, append = PLACES[name](text, tmp_path), [True], files.os.replace, files.append_line
    program = experiments.main if words[0] == "growth" else main

    def fail_there(path: Path) -> None:
        if full[0] and name in Path(path).relative_to(tmp_path).parts:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    def replace(source: Path, target: Path) -> None:
        fail_there(Path(target))
        write(source, target)

    def append_line(path: Path, line: bytes) -> None:
        with files.writing(path, len(line)):
            fail_there(path)
        append(path, line)

    monkeypatch.setattr(files.os, "replace", replace)
    monkeypatch.setattr("contentrope.training.metrics.append_line", append_line)
    assert program(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert len(error.splitlines()) == 1
    for word in (str(tmp_path), name, "free"):
        assert word in error
    full[0] = False
    assert program(words) == 0


def test_safetensors_own_errors_are_one_line(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors import SafetensorError

    def fail(*_: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("contentrope.training.checkpoint.save_file", fail)
    assert main(train(text, tmp_path)) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert str(tmp_path / "checkpoint" / "step-00000020") in error
    monkeypatch.undo()
    assert main(train(text, tmp_path)) == 0


def test_a_damaged_checkpoint_is_one_line(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = train(text, tmp_path, "--save-every", "10")

    advance = Run.advance
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "advance", lambda run: advance(run) if run.step < 15 else signal.raise_signal(signal.SIGINT))
        assert main(words) == 130
    steps = sorted((tmp_path / "checkpoint").iterdir())
    assert len(steps) == 2
    state = json.loads((steps[1] / "state.json").read_text())
    write_json(steps[1] / "state.json", state | {"step": 3})
    require_refused(words, tmp_path, capsys, steps[1], "10")
    shutil.rmtree(steps[1])
    assert main(words) == 0
