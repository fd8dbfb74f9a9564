"""``contentrope finetune --reader``: documents as memory units, from a file, from texts, from Natural Questions."""

from __future__ import annotations

import importlib.util
import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from contentrope.cli import main
from contentrope.corpora import natural_questions as nq
from contentrope.corpora.long_context import Question
from contentrope.results import read_json
from contentrope.training.loop import Run

if not importlib.util.find_spec("transformers"):
    pytest.skip("needs transformers", allow_module_level=True)

import contentrope.hf as chf
from contentrope.hf import data, readings
from contentrope.hf.chat import prompt_ids
from contentrope.hf.loading import load_any
from contentrope.store import UnitStore
from experiments.retrofit.models import fresh_original, save_plain
from tests.experiments.retrofit.tiny import TINY
from tests.hf.chats import PLAIN, chat_tokenizer, conversation
from tests.hf.test_documents import with_template

SIZES = ["--length", "64", "--steps", "4", "--batch-size", "2", "--warmup", "1", "--learning-rate", "0.01"]
SIZES += ["--longest-unit", "16", "--window", "8"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, tokenizer = tmp_path_factory.mktemp("reader") / "model", chat_tokenizer()
    save_plain(fresh_original(TINY, 0, len(tokenizer)).model, tokenizer, folder)
    return folder


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("questions") / "questions.jsonl"
    lines = [
        {"documents": ["ab" * (n % 5 + 1) + "\n", "c" * (n + 1) + "\n"], "messages": conversation("gh", "cde")}
        for n in range(12)
    ]
    lines[-1]["documents"] = ["fed\n"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("letters") / "letters.txt"
    path.write_text("abc de\nfgh\nab\n" * 1000)
    return path


def tune(model: Path, out: Path, *more: str) -> int:
    return main(["finetune", "--model", str(model), "--out", str(out), "--device", "cpu", *SIZES, "--reader", *more])


@pytest.fixture(scope="module")
def tuned(model: Path, questions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tuned") / "run"
    assert tune(model, out, "--data", str(questions)) == 0
    return out


def test_answers_behind_documents_are_learned_and_measured(tuned: Path, tmp_path: Path) -> None:
    found = read_json(tuned / "finetune.json")
    assert (found["data"]["conversations"], found["data"]["held_out"]) == (12, 1)
    assert list(found["before"]) == ["answers"]
    assert found["after"]["answers"] < found["before"]["answers"]
    model, tokenizer = load_any(str(tuned / "model"))
    assert chf.adapter_of(model).window == 8
    store = UnitStore(tmp_path, model, tokenizer)
    keys = store.add(["fed\n"])
    asked = store.ask(prompt_ids(conversation("gh"), tokenizer), keys)
    with torch.no_grad():
        losses = -model(**asked).logits[0, -1].log_softmax(0)
    expected = tokenizer("c")["input_ids"][0]
    assert losses[expected] < losses.mean(), "the store asks as was trained"
    assert "memory units" in (tuned / "model" / "README.md").read_text()


def test_a_run_that_was_stopped_ends_like_a_whole_one(
    model: Path, questions: Path, tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = Run.advance

    def press(run: Run) -> None:
        advance(run)
        if run.step == 2:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(Run, "advance", press)
        assert tune(model, tmp_path, "--data", str(questions)) == 130
    assert tune(model, tmp_path, "--data", str(questions)) == 0
    ours, theirs = (load_any(str(folder / "model"))[0].state_dict() for folder in (tmp_path, tuned))
    assert all(torch.equal(weight, theirs[name]) for name, weight in ours.items())


def test_its_result_is_a_file_of_options(tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["finetune", "--config", str(tuned / "finetune.json"), "--out"]
    assert main([*words, str(tmp_path / "again")]) == 0
    again, found = read_json(tmp_path / "again" / "finetune.json"), read_json(tuned / "finetune.json")
    assert (again["options"], again["after"]) == (found["options"], found["after"])
    capsys.readouterr()
    assert main([*words, str(tmp_path / "without"), "--no-reader"]) == 2
    assert "which are read with --reader" in capsys.readouterr().err


def test_texts_and_questions_go_together(questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "HELD_OUT_ROWS", 4)
    tokenizer = with_template(PLAIN)
    save_plain(fresh_original(TINY, 0, len(tokenizer)).model, tokenizer, tmp_path / "model")
    text = tmp_path / "text.txt"
    text.write_text("Of the sea. And of ships.\n" * 600)
    more = ["--text", str(text), "--length", "700", "--steps", "2", "--lengths", "100", "700"]
    assert tune(tmp_path / "model", tmp_path / "one", *more, "--retrieval", "0.5") == 0
    assert tune(tmp_path / "model", tmp_path / "two", *more, "--data", str(questions), "--distractors", "1") == 0
    one, two = (read_json(tmp_path / name / "finetune.json") for name in ("one", "two"))
    assert list(one["after"]) == list(two["after"]) == ["100", "700", "answers"]
    assert one["before"]["100"] == two["before"]["100"]
    assert one["before"]["answers"] != two["before"]["answers"], "of text, and of questions"


class Few:
    """Stands for the long-context texts."""

    def natural_questions(self) -> list[Question]:
        names = [f"{a}{b}" for a in "abcdefgh" for b in "abcdef"]
        return [Question(f"is {n} {n}", (n,), f"the {n} is {n}{n}", f"title {n}") for n in names]


def test_natural_questions_that_are_scored_are_not_trained_on(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readings, "long_context", Few)
    tokenizer = with_template(PLAIN)
    save_plain(fresh_original(TINY, 0, len(tokenizer)).model, tokenizer, tmp_path / "model")
    assert tune(tmp_path / "model", tmp_path / "run", "--data", "nq", "--length", "200") == 0
    found, parts = read_json(tmp_path / "run" / "finetune.json"), nq.split(Few().natural_questions())
    assert len(parts.scored) > 3
    assert found["data"]["conversations"] == len(parts.training) == 48 - len(parts.scored)


BAD: list[tuple[list[str], str]] = [
    ([], "there is nothing to train on"),
    (["--data", "QUESTIONS", "--positions", "gated", "--window", "0"], "with reader they are local"),
    (["--data", "QUESTIONS", "--distractors", "-1"], "distractors is a number of documents"),
    (["--no-reader", "--data", "QUESTIONS", "--distractors", "1"], "distractors is a number of documents"),
    (["--no-reader", "--data", "QUESTIONS"], "which are read with --reader"),
    (["--no-reader", "--data", "nq"], "pass --reader too"),
    (["--data", "QUESTIONS", "--length", "40"], "do not fit into a row of 40"),
    (["--text", "TEXT"], "has no room for passages"),
    (["--data", "nowhere.jsonl"], "there is no file 'nowhere.jsonl'"),
]


@pytest.mark.parametrize(("more", "message"), BAD, ids=[message for _, message in BAD])
def test_what_cannot_be_read_is_one_line(
    more: list[str],
    message: str,
    model: Path,
    questions: Path,
    letters: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places: dict[str, Any] = {"QUESTIONS": str(questions), "TEXT": str(letters)}
    assert tune(model, tmp_path / "run", *(places.get(word, word) for word in more)) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "run").exists()
