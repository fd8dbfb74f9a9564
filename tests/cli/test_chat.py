"""``contentrope generate --chat``: turns, the cache between them, Ctrl-C and Ctrl-D."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from contentrope.cli import main

if not importlib.util.find_spec("transformers"):
    pytest.skip("needs transformers", allow_module_level=True)

import contentrope.hf as chf
from contentrope.cli.chat import Chat, InterruptedReply
from experiments.retrofit.models import fresh_original, save_plain
from tests.experiments.retrofit.tiny import TINY
from tests.hf.chats import FORGETFUL, PLAIN, chat_tokenizer

UNKNOWN = chat_tokenizer().unk_token_id
OPTIONS: dict[str, Any] = {
    "max_new_tokens": 12,
    "do_sample": False,
    "pad_token_id": 0,
    "suppress_tokens": [UNKNOWN],  # is not written, so the next turn would not have it
}


def lively_model() -> Any:
    model = fresh_original(TINY, 0, len(chat_tokenizer())).model
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.5 * torch.randn(weight.shape, generator=generator))
    return model.eval()


def converted(window: int) -> Any:
    model = chf.attach(lively_model(), chat_tokenizer(), units="line", max_length=9, window=window, competition=1.0)
    with torch.no_grad():
        for weight in model.contentrope.parameters():
            weight.add_(0.3)
    return model


def chat_with(model: Any, template: str = PLAIN, write: Callable[[str], None] = lambda text: None) -> Chat:
    return Chat(model, chat_tokenizer(template), dict(OPTIONS), write)


@pytest.mark.parametrize("make", [lively_model, lambda: converted(0), lambda: converted(6)])
@pytest.mark.parametrize("template", [PLAIN, FORGETFUL])
@torch.no_grad()
def test_every_reply_is_that_of_the_whole_conversation_read_anew(make: Callable[[], Any], template: str) -> None:
    model, written = make(), []
    chat, kept = chat_with(model, template, written.append), []
    for text in ("ab", "c d", "e"):
        before = chat.cache
        answer = chat.reply(text)
        kept.append(before is not None and chat.cache is before)
        fresh = chat_with(model, template)
        fresh.messages = [dict(message) for message in chat.messages[:-2]]
        assert fresh.reply(text) == answer
        assert "".join(written).endswith(answer)
        assert chat.cache.get_seq_length() == len(chat.read)
    assert kept[1:] == [template == PLAIN] * 2, "a template that goes on is read on, another one anew"


@torch.no_grad()
def test_a_reply_that_is_stopped_is_kept_and_the_chat_goes_on() -> None:
    model, pressed = lively_model(), []

    def press(text: str) -> None:
        pressed.append(text)
        if len(pressed) == 4:
            raise KeyboardInterrupt

    chat = chat_with(model, write=press)
    with pytest.raises(InterruptedReply):
        chat.reply("ab")
    assert chat.messages[-1]["role"] == "assistant"
    assert 0 < len(chat.messages[-1]["content"]) <= 4
    answer = chat.reply("c")
    fresh = chat_with(model)
    fresh.messages = [dict(message) for message in chat.messages[:-2]]
    assert fresh.reply("c") == answer


# --- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat") / "model"
    save_plain(lively_model(), chat_tokenizer(), folder)
    return folder


def generate(model: Path, *more: str) -> int:
    words = ["generate", "--model", str(model), "--chat", "--device", "cpu", "--tokens", "8", "--temperature", "0"]
    return main([*words, *more])


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What somebody types at a terminal; then Ctrl-D. An exception is raised."""
    lines: list[Any] = []

    def read(prompt: str = "") -> str:
        line = lines.pop(0) if lines else EOFError()
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr("builtins.input", read)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    yield lines
    assert not lines, "the chat ended before"


def test_a_prompt_gets_one_reply_where_there_is_no_terminal(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(model, "--prompt", "ab") == 0
    chat = chat_with(lively_model())
    chat.options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        assert capsys.readouterr().out == chat.reply("ab") + "\n"


def test_turn_by_turn_at_a_terminal(model: Path, typed: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    typed += ["ab", " ", "c d"]
    assert generate(model) == 0
    chat = chat_with(lively_model())
    chat.options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        expected = [chat.reply("ab"), chat.reply("c d")]
    assert capsys.readouterr().out == "".join(f"{answer}\n" for answer in expected) + "\n"


def test_ctrl_c_twice_ends_the_chat_and_once_does_not(model: Path, typed: list[Any]) -> None:
    typed += [KeyboardInterrupt(), "ab", KeyboardInterrupt(), KeyboardInterrupt()]
    assert generate(model) == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "a chat needs a terminal"),
        (["--prompt", "ab", "--samples", "2"], "one reply at a time"),
        (["--prompt", "ab", "--stop-at-unit-end"], "one reply at a time"),
        (["--prompt", "ab", "--top-k", "0"], "top_k must be at least 1"),
    ],
)
def test_what_is_no_chat_is_one_line(
    more: list[str], message: str, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    assert generate(model, *more) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_a_model_without_a_template_or_of_characters_is_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_plain(lively_model(), chat_tokenizer(None), tmp_path / "plain")
    (tmp_path / "other").mkdir()
    for name, message in (("plain", "no chat template"), ("other", "no Hugging Face model")):
        assert generate(tmp_path / name, "--prompt", "ab") == 2
        assert message in capsys.readouterr().err
