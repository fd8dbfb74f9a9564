"""What a model is fine-tuned on: texts, conversations, and rows of hidden facts, in one source of batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from contentrope.corpora import read_text
from contentrope.errors import InputError
from contentrope.hf.characters import Encoded, encode
from contentrope.hf.chat import ChatRows, Conversations, read_conversations
from contentrope.training import Batches, Mixed, RetrievalRows, Windows

NOTHING = torch.zeros(0, dtype=torch.int64)


@dataclass(frozen=True, kw_only=True)
class Data:
    """Texts, conversations, or both, as token ids."""

    text: Encoded
    chat: Conversations | None
    description: dict[str, Any]
    """Which they are, as JSON."""

    @property
    def ids(self) -> list[Tensor]:
        """Everything, to look at."""
        chat = () if self.chat is None else (*self.chat.training, *self.chat.held_out)
        return [*self.text, *(conversation.ids for conversation in chat)]

    def batches(self, tokenizer: Any, length: int, retrieval: float, device: str) -> Batches:
        """Rows of texts and of conversations by how many tokens each has; of all rows, a share of hidden facts."""
        text, chat = self.text.training, () if self.chat is None else self.chat.training
        if not len(text):
            return ChatRows(chat, length, device=device)
        batches: Batches = Windows(text, length, device)
        if chat:
            tokens = sum(len(conversation.ids) for conversation in chat)
            batches = Mixed(batches, ChatRows(chat, length, device=device), tokens / (tokens + len(text)))
        if retrieval:
            batches = Mixed(batches, RetrievalRows(text, length, tokenizer, device=device), retrieval)
        return batches


def read_data(texts: Sequence[str], chat: str | None, characters: int | None, tokenizer: Any, length: int) -> Data:
    """Refused where a part is too short for windows of this length."""
    if not texts and chat is None:
        raise InputError("there is nothing to train on: name texts with --text, conversations with --data, or both")
    read = read_text(texts, characters) if texts else None
    text = Encoded(NOTHING, NOTHING) if read is None else encode(read, tokenizer)
    if read is not None and min(map(len, text)) <= length:
        raise InputError(
            f"the text has {len(text.training)} tokens to train on and {len(text.held_out)} held out, too few for "
            f"windows of length {length}; take a longer text, or a shorter length"
        )
    conversations = None if chat is None else read_conversations(chat, tokenizer, length)
    description: dict[str, Any] = {} if read is None else {"corpus": read.description}
    if conversations is not None:
        description["data"] = conversations.description
    return Data(text=text, chat=conversations, description=description)
