"""Conversations as rows to train on: each as the tokenizer's chat template writes it, scored on the answers only.

One conversation is one row: nothing of another one is before it, and what pads it on the right is behind it, where no
token sees it. What does not fit into a row is cut off at its end.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from contentrope.errors import InputError
from contentrope.training.batches import IGNORED, Batch, mixed_seed

ASSISTANT = "assistant"
DOCUMENTS = "documents"
"""Of a line, beside its messages."""
MARKED = re.compile(r"{%-?\s*generation\s*-?%}")
HELD_OUT_SHARE = 0.1

Messages = list[dict[str, Any]]


class Conversation(NamedTuple):
    """Token ids, and which of them are answers."""

    ids: Int[Tensor, "tokens"]
    answers: Tensor


class Conversations(NamedTuple):
    training: list[Conversation]
    held_out: list[Conversation]
    description: dict[str, Any]


def read_conversations(path: str | Path, tokenizer: Any, length: int) -> Conversations:
    """The conversations in a JSON-lines file; the last tenth of them is held out.

    Each line is ``{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}``.
    """
    require_template(tokenizer, path)
    raw = bytes_of(path)
    found = []
    for where, line in lines_of(raw, path):
        if line.get(DOCUMENTS):
            raise InputError(f'{where} has "{DOCUMENTS}", which are read with --reader; pass it, or remove them')
        found.append(encoded(messages_of(line, where), tokenizer, where))
    cut = [_cut(conversation, length) for conversation in found]
    fitting = [conversation for conversation in cut if conversation.answers.any()]
    if len(fitting) < 2:
        raise InputError(
            f"{path} has {len(fitting)} conversations whose first answer begins within {length} tokens, and at least 2 "
            "are needed: one is held out; take more, or a larger length"
        )
    held_out = max(1, int(len(fitting) * HELD_OUT_SHARE))
    description = {
        "name": Path(path).name,
        "sha256": hashlib.sha256(raw).hexdigest(),
        "conversations": len(found),
        "left_out": len(found) - len(fitting),
        "cut": sum(len(a.ids) > len(b.ids) for a, b in zip(found, cut, strict=True) if b.answers.any()),
        "training": len(fitting) - held_out,
        "held_out": held_out,
    }
    return Conversations(fitting[:-held_out], fitting[-held_out:], description)


def encoded(messages: Messages, tokenizer: Any, where: str) -> Conversation:
    """A conversation as tokens, with the answers found in it."""
    if MARKED.search(str(tokenizer.chat_template)):
        options = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": True}
        both = _rendered(messages, tokenizer, where, **options)
        ids, mask = both["input_ids"], both["assistant_masks"]
    else:
        text, spans = _answers_by_prefix(messages, tokenizer, where)
        ids, mask = _mask_by_spans(text, spans, tokenizer)
    return Conversation(torch.tensor(ids, dtype=torch.int64), torch.tensor(mask, dtype=torch.bool))


def prompt_ids(messages: Messages, tokenizer: Any) -> list[int]:
    """A conversation up to where the next answer begins. So it is read, with or without documents before it, by a
    service, in training and in every measurement; what the template raises is the caller's to explain."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


class ChatRows:
    """Random conversations, each in a row of its own; every target but those in answers is ignored."""

    def __init__(
        self, conversations: Sequence[Conversation], length: int, *, device: torch.device | str = "cpu"
    ) -> None:
        self.conversations, self.length, self.device = conversations, length, device

    def at(self, step: int, rows: int, seed: int) -> Batch:
        generator = torch.Generator().manual_seed(mixed_seed(seed, step, 3))
        drawn = torch.randint(len(self.conversations), (rows,), generator=generator).tolist()
        return self.batch([self.conversations[index] for index in drawn])

    def batch(self, conversations: Sequence[Conversation]) -> Batch:
        ids = torch.zeros(len(conversations), self.length + 1, dtype=torch.int64)
        targets = torch.full_like(ids, IGNORED)
        for row, conversation in enumerate(conversations):
            count = len(conversation.ids)
            ids[row, :count] = conversation.ids
            ids[row, count:] = conversation.ids[-1]  # any token will do: nothing that counts sees it
            targets[row, :count] = conversation.ids.masked_fill(~conversation.answers, IGNORED)
        ids, targets = ids.to(self.device), targets.to(self.device)
        return Batch({"ids": ids[:, :-1]}, targets[:, 1:])


def _cut(conversation: Conversation, length: int) -> Conversation:
    """What fits into a row. Its first token is no target."""
    answers = conversation.answers[: length + 1].clone()
    answers[:1] = False
    return Conversation(conversation.ids[: length + 1], answers)


def _answers_by_prefix(messages: Messages, tokenizer: Any, where: str) -> tuple[str, list[tuple[int, int]]]:
    """The text of a conversation, and where in it each answer begins and ends.

    An answer is what a rendering up to it has more than one up to what invites it. That holds where each rendering
    begins as the one before it, which is looked at.
    """
    whole, end, spans = _rendered(messages, tokenizer, where), "", []
    for index, message in enumerate(messages):
        if message["role"] != ASSISTANT:
            continue
        invited = _rendered(messages[:index], tokenizer, where, add_generation_prompt=True)
        answered = _rendered(messages[: index + 1], tokenizer, where)
        for shorter, longer in ((end, invited), (invited, answered), (answered, whole)):
            if not longer.startswith(shorter):
                raise InputError(
                    f"{where}: the chat template writes message {index + 1} otherwise once more follows, so its "
                    "answers cannot be told apart; mark them in it by {% generation %} and {% endgeneration %}"
                )
        spans.append((len(invited), len(answered)))
        end = answered
    return whole, spans


def _mask_by_spans(text: str, spans: list[tuple[int, int]], tokenizer: Any) -> tuple[list[int], list[bool]]:
    """Tokens, and which of them have a character in a span."""
    if getattr(tokenizer, "is_fast", False):
        found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        places = found["offset_mapping"]
        return found["input_ids"], [any(a < end and b > start for start, end in spans) for a, b in places]
    ids: list[int] = []
    mask: list[bool] = []
    before = 0
    for start, end in (*spans, (len(text), len(text))):
        for piece, answer in ((text[before:start], False), (text[start:end], True)):
            more = tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"] if piece else []
            ids, mask = ids + more, mask + [answer] * len(more)
        before = end
    return ids, mask


def _rendered(messages: Messages, tokenizer: Any, where: str, **options: Any) -> Any:
    if not messages:  # some templates refuse to write nothing
        return ""
    try:
        return tokenizer.apply_chat_template(messages, **{"tokenize": False, **options})
    except Exception as error:  # of Jinja, and whatever a template raises itself
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"{where}: the chat template refuses this conversation ({reason}); change or remove it"
        ) from error


def lines_of(raw: bytes, path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a JSON-lines file holds, each with where it stands."""
    for number, line in enumerate(raw.splitlines(), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            try:
                found = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{where} is not JSON ({error}); restore or remove it") from error
            yield where, found if isinstance(found, dict) else {}


def messages_of(line: dict[str, Any], where: str) -> Messages:
    """The messages of a line, an answer among them."""
    messages = line.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InputError(f'{where} has no "messages", a list of {{"role": ..., "content": ...}}; add or remove it')
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, dict) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
            raise InputError(f'{where}: message {number} has no "role" and "content" that are text; mend or remove it')
    if not any(message["role"] == ASSISTANT for message in messages):
        raise InputError(f'{where} has no message with the role "{ASSISTANT}", so nothing to learn; remove it')
    return messages


def require_template(tokenizer: Any, path: str | Path) -> None:
    """Refuse conversations that nobody knows how to write."""
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(
            f"{path} holds conversations, and the tokenizer has no chat template to write them by; take an instruct "
            "model, or set tokenizer.chat_template and save it"
        )


def bytes_of(path: str | Path) -> bytes:
    """A file of conversations, whole."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r} with conversations; check the path")
    return path.read_bytes()
