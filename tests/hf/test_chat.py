"""Conversations as rows: which tokens are answers, what a row holds, what is refused and by which line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from contentrope.errors import InputError
from contentrope.hf.chat import ChatRows, encoded, read_conversations
from contentrope.training import IGNORED
from tests.hf.chats import FORGETFUL, MARKED, PLAIN, chat_tokenizer, conversation, write_chats

CHAT = conversation("ab", "cd e", "f", "gh")


def answers(found: Any, tokenizer: Any) -> str:
    return "".join(tokenizer.decode([i]) if a else "|" for i, a in zip(found.ids, found.answers, strict=True))


class Slow:
    """A tokenizer that knows no offsets."""

    is_fast = False

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        assert "return_offsets_mapping" not in options
        return self.tokenizer(*arguments, **options)


@pytest.mark.parametrize("slow", [False, True])
def test_the_answers_and_nothing_else_count(slow: bool) -> None:
    tokenizer = chat_tokenizer(PLAIN)
    found = encoded(CHAT, Slow(tokenizer) if slow else tokenizer, "here")
    assert tokenizer.decode(found.ids) == "<user>ab</>\n<assistant>cd e</>\n<user>f</>\n<assistant>gh</>\n"
    assert [part for part in answers(found, tokenizer).split("|") if part] == ["cd e</>\n", "gh</>\n"]


def test_a_template_that_marks_answers_is_believed() -> None:
    tokenizer = chat_tokenizer(MARKED)
    found = encoded(CHAT, tokenizer, "here")
    assert [part for part in answers(found, tokenizer).split("|") if part] == ["cd e</>", "gh</>"]


def test_a_template_that_writes_earlier_messages_otherwise_is_refused() -> None:
    with pytest.raises(InputError, match=r"file, line 3.*\{% generation %\}"):
        encoded(CHAT, chat_tokenizer(FORGETFUL), "file, line 3")
    encoded(CHAT[:2], chat_tokenizer(PLAIN), "file, line 3")


def test_a_row_holds_one_conversation_and_what_pads_it_does_not_count(tmp_path: Path) -> None:
    tokenizer = chat_tokenizer()
    path = write_chats(tmp_path / "chats.jsonl", *[CHAT, conversation("a", "b" * 40)] * 6)
    found = read_conversations(path, tokenizer, 60)
    assert (len(found.training), len(found.held_out)) == (11, 1)
    assert (found.description["cut"], found.description["left_out"]) == (6, 0)
    rows = ChatRows(found.training, 60)
    batch = rows.at(3, rows=20, seed=0)
    assert torch.equal(batch.targets, rows.at(3, rows=20, seed=0).targets)
    assert not torch.equal(batch.targets, rows.at(4, rows=20, seed=0).targets)
    texts = set()
    for ids, targets in zip(batch.inputs["ids"], batch.targets, strict=True):
        counted = targets != IGNORED
        assert torch.equal(targets[:-1][counted[:-1]], ids[1:][counted[:-1]])
        text = tokenizer.decode(targets[counted])
        texts.add(text)
        assert tokenizer.decode(ids).count("<user>") == (2 if "cd e" in text else 1), "of one conversation"
    assert texts == {"cd e</>\ngh</>\n", "b" * 39}, "the second is cut at its end"


def test_what_does_not_fit_is_cut_and_a_conversation_without_an_answer_left_out(tmp_path: Path) -> None:
    path = write_chats(tmp_path / "chats.jsonl", CHAT, CHAT, conversation("a" * 50, "b"))
    found = read_conversations(path, chat_tokenizer(), 30)
    assert (found.description["cut"], found.description["left_out"]) == (2, 1)
    assert all(len(c.ids) == 31 and c.answers.any() for c in (*found.training, *found.held_out))
    with pytest.raises(InputError, match="0 conversations"):
        read_conversations(path, chat_tokenizer(), 10)


GOOD = json.dumps({"messages": CHAT})
DAMAGED = {
    "{": "not JSON",
    "[]": 'has no "messages"',
    '{"messages": []}': 'has no "messages"',
    '{"messages": ["a"]}': "message 1 has no",
    '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant"}]}': "message 2 has no",
    '{"messages": [{"role": "assistant", "content": [1]}]}': "message 1 has no",
    '{"messages": [{"role": "user", "content": "a"}]}': 'no message with the role "assistant"',
    "[" * 100_000: "not JSON",
}


@pytest.mark.parametrize("line", DAMAGED, ids=lambda line: line[:60])
def test_a_damaged_line_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(f"{GOOD}\n\n{line}\n{GOOD}\n")
    with pytest.raises(InputError) as caught:
        read_conversations(path, chat_tokenizer(), 60)
    assert f"{path}, line 3" in str(caught.value)
    assert DAMAGED[line] in str(caught.value)


def test_what_a_template_raises_names_the_line_and_no_template_is_refused(tmp_path: Path) -> None:
    path = write_chats(tmp_path / "chats.jsonl", CHAT, CHAT)
    with pytest.raises(InputError, match=r"line 1: .*roles must alternate"):
        read_conversations(path, chat_tokenizer("{{ raise_exception('roles must alternate') }}"), 60)
    with pytest.raises(InputError, match="no chat template"):
        read_conversations(path, chat_tokenizer(None), 60)
    with pytest.raises(InputError, match="there is no file"):
        read_conversations(tmp_path / "nowhere.jsonl", chat_tokenizer(), 60)
