"""Every option of every command, given values that make no sense: it goes on to its work, or is refused in one line.

Nothing is trained, measured or written: where a command would begin with it, it is stopped.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from contentrope.cli import evaluate, evaluate_tokens, finetune, generate, index, main, parsing, serve, train
from contentrope.cli.commands import Info
from experiments import __main__ as experiments
from experiments import report
from experiments.command import Places, presets_of, settings_of
from experiments.facts import show
from experiments.results import EXPERIMENTS
from tests.cli.conftest import SIZES

LONG = ["9" * 30, "9" * 5000, "a" * 5000]
ODD = ["", "-1", "0", "1.5", "nan", "-inf", "1e308", "x", " ", "\0", "\udcff", "[[1]]", *LONG]
FILES = ["latin", "nul", "empty", "deep", "list", "folder", "missing", "pipe", "locked"]


def options_of(kind: type) -> Iterator[str]:
    for field in dataclasses.fields(kind):
        nested = field.default_factory
        if isinstance(nested, type) and dataclasses.is_dataclass(nested):
            yield from options_of(nested)
        elif field.name == "training":
            yield from options_of(train.TrainOptions)
        elif "Positional" not in str(field.type):
            yield "--" + field.name.replace("_", "-")


def options_of_experiment(name: str) -> Iterator[str]:
    yield from ("--preset", *options_of(Places))
    for setting in settings_of(presets_of(name)["quick"]):
        yield "--" + setting.name.replace("_", "-")


PROGRAMS: dict[str, Callable[[list[str]], int]] = dict.fromkeys(EXPERIMENTS, experiments.main)
COMMANDS: dict[str, tuple[list[str], list[str]]] = {
    name: (list(options_of(kind)), words)
    for name, kind, words in (
        ("train", train.Train, ["--text", "{text}", "--out", "{out}", "--length", "16", "--dim", "8", "--layers", "1"]),
        ("finetune", finetune.Finetune, ["--model", "{missing}", "--text", "{text}", "--out", "{out}"]),
        ("evaluate", evaluate.Evaluate, ["{model}", "--text", "{text}", "--lengths", "16", "--recent", "8"]),
        ("generate", generate.Generate, ["{model}", "--tokens", "2"]),
        ("index", index.Index, ["--model", "{missing}", "--store", "{out}", "--text", "{text}"]),
        ("serve", serve.Serve, ["--model", "{missing}", "--store", "{out}"]),
        ("info", Info, []),
    )
} | {
    name: (list(options_of_experiment(name)), words)
    for name, words in {
        "growth": ["--corpus", "{text}", "--lengths", "16", "--out", "{out}"],
        "facts": ["--out", "{out}"],
        "timing": ["--out", "{out}"],
        "retrofit": ["--text", "{text}", "--length", "16", "--out", "{out}"],
    }.items()
}  # fmt: skip
"""By command: its options, and words that it takes."""


class ReachedError(Exception):
    """The command took its options, and would begin its work."""


@pytest.fixture(autouse=True)
def nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise ReachedError

    monkeypatch.setattr(train.Train, "_train", stop)
    monkeypatch.setattr(finetune.Finetune, "_train", stop)
    monkeypatch.setattr(evaluate.Evaluate, "_measure", stop)
    monkeypatch.setattr(evaluate_tokens, "evaluate_tokens", stop)
    monkeypatch.setattr(sys.modules["experiments.runner"], "measure_all", stop)
    monkeypatch.setattr(generate.Generate, "_write_tokens", stop)
    monkeypatch.setattr("contentrope.serving.server.listen", stop)
    for name in ("generate", "generate_stream"):
        monkeypatch.setattr(generate, name, stop)


@pytest.fixture
def places(trained: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Files of every unfit kind, by name, and what fits."""
    (tmp_path / "files").mkdir()
    there = {name: tmp_path / "files" / name for name in FILES}
    there["latin"].write_bytes(b"\xe9\n" * 500)
    there["nul"].write_bytes(b"a\0\n" * 500)
    there["empty"].touch()
    there["deep"].write_text("[" * 100_000)
    there["list"].write_text("[]")
    there["folder"].mkdir()
    os.mkfifo(there["pipe"])
    there["locked"].touch(mode=0)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return {name: str(path) for name, path in {**there, "text": text, "model": trained, "out": tmp_path / "o"}.items()}


def with_value(words: list[str], option: str, value: str) -> list[str]:
    if option not in words:
        return [*words, f"{option}={value}"]
    place = words.index(option)
    return [*words[:place], f"{option}={value}", *words[place + 2 :]]


@contextmanager
def at_most(seconds: int, words: list[str]) -> Iterator[None]:
    """A command that waits for ever fails by its name."""

    def fail(*_: object) -> None:
        pytest.fail(f"{words} takes more than {seconds} seconds")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def require_one_line_or_work(
    words: list[str], capsys: pytest.CaptureFixture[str], program: Callable[[list[str]], int] | None = None
) -> None:
    try:
        with at_most(60, words):
            status = (program or PROGRAMS.get(words[0], main))(words)
    except ReachedError:
        status = 0
    except SystemExit as stop:
        status = int(stop.code or 0)
    error = capsys.readouterr().err
    assert status in (0, 2), (words, status, error)
    if status:
        assert error.startswith("error: "), words
        assert len(error.splitlines()[0]) < 2000, words


@pytest.mark.parametrize("name", COMMANDS)
def test_any_value_of_any_option_is_taken_or_refused(
    name: str, places: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    options, given = COMMANDS[name]
    words = [name, *(word.format(**places) for word in given)]
    for number, option in enumerate(options):
        for value in ODD[number % 2 :: 2]:  # options share their ways to be read: half of the values for each will do
            require_one_line_or_work(with_value(words, option, value), capsys)


@pytest.mark.parametrize("option", ["--text", "--out", "--prompt-file", "--model", "--corpus", "MODEL_DIR"])
def test_any_file_is_taken_or_refused(option: str, places: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    for name, (options, given) in COMMANDS.items():
        words = [name, *(word.format(**places) for word in given)]
        for file in FILES:
            if option in options:
                require_one_line_or_work(with_value(words, option, places[file]), capsys)
            elif option == "MODEL_DIR" and given and not given[0].startswith("--"):
                require_one_line_or_work([words[0], places[file], *words[2:]], capsys)


def test_any_value_of_the_facts_examples_is_taken_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for option in [*show.OPTIONS, "distractors"]:
        for value in ODD:
            require_one_line_or_work([f"--{option}={value}"], capsys, show.main)


def test_any_file_is_shown_or_refused(places: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    for file in FILES:
        require_one_line_or_work([places[file]], capsys, report.main)
        require_one_line_or_work([places["list"], "--out", places[file]], capsys, report.main)


@pytest.mark.parametrize("odd", [None, "x", [], {}, 10**30])
@pytest.mark.parametrize("key", ["variant", "parameters", "final_loss", "held_out_perplexity", "length", "corpus"])
def test_the_file_of_a_finished_run_may_say_anything(
    key: str, odd: Any, trained: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    found = json.loads((trained / "train.json").read_text())
    (out / "train.json").write_text(json.dumps({**found, key: odd}))
    require_one_line_or_work(["train", "--text", str(text), "--out", str(out), *SIZES], capsys)
    (out / "train.json").write_text(json.dumps({name: value for name, value in found.items() if name != key}))
    require_one_line_or_work(["train", "--text", str(text), "--out", str(out), *SIZES], capsys)


def test_these_tests_know_every_option() -> None:
    known = set(options_of(train.Train))
    assert {"--variant", "--dim", "--learning-rate", "--seed", "--out"} <= known
    assert "--folder" not in set(options_of(evaluate.Evaluate)), "its folder comes without a name"
    assert {"--original-steps", "--learning-rate", "--dim", "--jobs"} <= set(options_of_experiment("retrofit"))
    assert parsing.EXPECTED_ERRORS
