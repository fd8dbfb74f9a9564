"""From messages to token ids, by the chat template of a tokenizer."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from typing import Any

from contentrope.errors import InputError
from contentrope.hf.chat import prompt_ids
from contentrope.serving.refusals import Refused
from contentrope.serving.schemas import Message

NAMES = {"developer": "system"}
"""Roles that templates know by another name."""


class Prompts:
    def __init__(self, tokenizer: Any, embeddings: int, template: str | None = None) -> None:
        """``embeddings``: how many tokens the model knows."""
        self.embeddings = embeddings
        # A copy, and one call at a time: tokenizers cannot be used by several threads at once.
        self._tokenizer, self._lock = copy.deepcopy(tokenizer), threading.Lock()
        if template is not None:
            self._tokenizer.chat_template = template
        if not self._tokenizer.chat_template:
            raise InputError(
                "the tokenizer has no chat template, so messages cannot become a prompt; pass one: --chat-template FILE"
            )

    def ids(self, messages: Sequence[Message]) -> list[int]:
        """The prompt, up to where the answer begins."""
        from jinja2 import TemplateError

        spoken = [{"role": NAMES.get(one.role, one.role), "content": one.content} for one in messages]
        with self._lock:
            try:
                found = prompt_ids(spoken, self._tokenizer)
            except TemplateError as error:
                raise Refused(400, f"the model's chat template refuses: {error}", param="messages") from error
        if not found:
            raise Refused(400, "the messages have no tokens; write something", param="messages")
        if max(found) >= self.embeddings:
            message = f"the tokenizer gives token {max(found)}, for which the model has no embedding; write otherwise"
            raise Refused(400, message, param="messages")
        return found
