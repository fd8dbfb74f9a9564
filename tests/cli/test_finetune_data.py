"""``contentrope finetune``: conversations, hidden facts, options from a file, lengths, the card, the hub."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from contentrope.cli import main
from contentrope.results import read_json
from contentrope.training.loop import Run

if not importlib.util.find_spec("transformers"):
    pytest.skip("needs transformers", allow_module_level=True)

import contentrope.hf as chf
from contentrope.hf.chat import ChatRows, read_conversations
from contentrope.hf.finetune import CausalLM
from contentrope.hf.loading import load_any
from contentrope.hf.measuring import answers_perplexity
from experiments.retrofit.models import fresh_original, save_plain
from tests.experiments.retrofit.tiny import TINY
from tests.hf.chats import chat_tokenizer, conversation, write_chats
from tests.hf.test_hub import FakeHub

SIZES = ["--length", "48", "--steps", "4", "--batch-size", "4", "--warmup", "1", "--learning-rate", "0.01"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, tokenizer = tmp_path_factory.mktemp("chat") / "model", chat_tokenizer()
    save_plain(fresh_original(TINY, 0, len(tokenizer)).model, tokenizer, folder)
    return folder


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = [conversation("ab" * (i % 5 + 1), "cde", "f", "gh" * (i % 3 + 1)) for i in range(20)]
    return write_chats(tmp_path_factory.mktemp("chats") / "chats.jsonl", *made)


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("letters") / "letters.txt"
    path.write_text("abc de\nfgh\nab\n" * 1000)
    return path


def tune(model: Path, out: Path, *more: str) -> int:
    return main(["finetune", "--model", str(model), "--out", str(out), "--device", "cpu", *SIZES, *more])


def test_conversations_are_learned_from_and_measured(model: Path, chats: Path, tmp_path: Path) -> None:
    assert tune(model, tmp_path / "run", "--data", str(chats), "--lora", "2") == 0
    found = read_json(tmp_path / "run" / "finetune.json")
    assert (found["data"]["conversations"], found["data"]["held_out"]) == (20, 2)
    assert "corpus" not in found
    assert list(found["before"]) == ["answers"]
    assert found["after"]["answers"] < found["before"]["answers"]
    assert "answers: better" in found["sentence"]
    for name, folder in (("before", model), ("after", tmp_path / "run" / "model")):
        loaded, tokenizer = load_any(str(folder))
        held_out = read_conversations(chats, tokenizer, 48).held_out
        expected = answers_perplexity(CausalLM(loaded), ChatRows([], 48), held_out)
        assert found[name]["answers"] == pytest.approx(expected, rel=1e-5)


def test_texts_conversations_and_hidden_facts_go_together(
    model: Path, chats: Path, letters: Path, tmp_path: Path
) -> None:
    more = ["--text", str(letters), "--data", str(chats), "--retrieval", "0.5", "--steps", "2", "--length", "1000"]
    assert tune(model, tmp_path / "run", *more) == 0
    found = read_json(tmp_path / "run" / "finetune.json")
    assert found["retrieval"] == 0.5
    assert {"answers", "4", "1024"} <= found["after"].keys()
    assert {"corpus", "data"} <= found.keys()
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    for said in (found["corpus"]["sha256"], found["data"]["sha256"], found["sentence"], "50%"):
        assert said in card


def test_a_finished_run_can_be_made_again_from_its_result(model: Path, letters: Path, tmp_path: Path) -> None:
    more = ["--text", str(letters), "--window", "8", "--longest-unit", "7", "--lengths", "12", "48"]
    assert tune(model, tmp_path / "first", *more) == 0
    found = read_json(tmp_path / "first" / "finetune.json")
    assert list(found["before"]) == ["12", "48"]
    words = ["finetune", "--config", str(tmp_path / "first" / "finetune.json"), "--out", str(tmp_path / "second")]
    assert main(words) == 0
    again = read_json(tmp_path / "second" / "finetune.json")
    assert (again["options"], again["after"]) == (found["options"], found["after"])
    assert main([*words[:-1], str(tmp_path / "third"), "--competition", "0", "--seed", "1"]) == 0
    other = read_json(tmp_path / "third" / "finetune.json")
    assert other["addresses"]["competition"] == 0.0
    assert other["after"] != found["after"]


def test_the_near_window_is_chosen_by_the_model_unless_it_is_said(model: Path, letters: Path, tmp_path: Path) -> None:
    """The model was made for 16 tokens, a quarter of which are 4."""
    text = ["--text", str(letters), "--longest-unit", "7", "--steps", "2"]
    for more, expected in (([], 4), (["--window", "0"], 0), (["--positions", "gated"], 0), (["--window", "9"], 9)):
        out = tmp_path / f"run{expected}{len(more)}{more[:1]}"
        assert tune(model, out, *text, *more) == 0
        found = read_json(out / "finetune.json")
        assert (found["limit"], found["addresses"]["window"]) == (16, expected)
        assert chf.adapter_of(load_any(str(out / "model"))[0]).window == expected


def test_the_model_is_uploaded_when_it_is_done(
    model: Path,
    letters: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words: list[Any] = ["--text", str(letters), "--push-to-hub", "me/mine"]
    monkeypatch.setattr("huggingface_hub.HfApi", FakeHub("whoami"))
    with monkeypatch.context() as patched:
        patched.setattr(Run, "advance", lambda run: pytest.fail("trained before it was asked who uploads"))
        assert tune(model, tmp_path / "run", *words) == 2
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr("huggingface_hub.HfApi", FakeHub("upload_folder"))
    capsys.readouterr()
    assert tune(model, tmp_path / "run", *words) == 2
    error = capsys.readouterr().err
    assert f"hf upload me/mine {tmp_path / 'run' / 'model'}" in error
    assert len(error.splitlines()) == 1
    assert load_any(str(tmp_path / "run" / "model"))
    fake = FakeHub()
    monkeypatch.setattr("huggingface_hub.HfApi", fake)
    monkeypatch.setattr(Run, "advance", lambda run: pytest.fail("trained again"))
    assert tune(model, tmp_path / "run", *words) == 0
    assert fake.asked[-1][0] == "upload_folder"
    assert fake.asked[-1][2]["folder_path"] == tmp_path / "run" / "model"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "there is nothing to train on"),
        (["--data", "nowhere.jsonl"], "there is no file 'nowhere.jsonl'"),
        (["--data", "CHATS", "--retrieval", "0.3"], "facts are hidden in texts"),
        (["--text", "TEXT", "--retrieval", "1.5"], "retrieval must be a share"),
        (["--text", "TEXT", "--retrieval", "0.3"], "has no room for facts"),
        (["--text", "TEXT", "--lengths", "20", "48"], "must divide the longest"),
        (["--data", "CHATS", "--lengths", "48"], "does not fit"),
    ],
)
def test_what_cannot_be_trained_on_is_one_line(
    more: list[str],
    message: str,
    model: Path,
    chats: Path,
    letters: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"CHATS": str(chats), "TEXT": str(letters)}
    assert tune(model, tmp_path / "run", *(places.get(word, word) for word in more)) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "run").exists()
