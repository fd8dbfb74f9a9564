"""``contentrope generate --chat``: a conversation with a Hugging Face model, turn by turn, by its chat template."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from contentrope.errors import InputError

Write = Callable[[str], None]
STOP = "(Ctrl-C again, or Ctrl-D, ends the chat)"


@dataclass
class Chat:
    """A conversation so far. What was read stays in the cache as long as the template goes on from it."""

    model: Any
    tokenizer: Any
    options: dict[str, Any]
    """Of the model's own ``generate``."""
    write: Write
    """Where a reply appears as it is drawn."""
    messages: list[dict[str, str]] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    """Token ids that the cache holds."""
    cache: Any = None

    def __post_init__(self) -> None:
        if not getattr(self.tokenizer, "chat_template", None):
            raise InputError(
                "the tokenizer of this model has no chat template, so it was not made for conversations; leave --chat "
                "out, or take an instruct model"
            )

    def reply(self, text: str) -> str:
        """The model's answer. Ctrl-C ends it, and what was written so far counts as the answer."""
        from contentrope.cli.generate import Printer

        self.messages.append({"role": "user", "content": text})
        ids = self._ids()
        self._keep_what_goes_on(ids)
        printer = Printer(self.tokenizer, self.write)
        found: Tensor | None = None
        rows = torch.tensor([ids], device=self.model.device)
        try:
            found = self.model.generate(
                input_ids=rows,
                attention_mask=torch.ones_like(rows),
                past_key_values=self.cache,
                streamer=printer,
                **self.options,
            )
        except KeyboardInterrupt:
            self.cache, self.read = None, []  # a call that was cut short may have left it half changed
        else:
            # The last token was drawn and not read.
            self.read = found[0, :-1].tolist()
        answer = self.tokenizer.decode(printer.ids[len(ids) :], skip_special_tokens=True)
        self.messages.append({"role": "assistant", "content": answer})
        if found is None:
            raise InterruptedReply
        return answer

    def _ids(self) -> list[int]:
        """The conversation with an invitation to answer."""
        try:
            found = self.tokenizer.apply_chat_template(
                self.messages, add_generation_prompt=True, tokenize=True, return_dict=True
            )
        except Exception as error:  # of Jinja, and whatever a template raises itself
            raise InputError(f"the chat template refuses this conversation: {' '.join(str(error).split())}") from error
        return list(found["input_ids"])

    def _keep_what_goes_on(self, ids: list[int]) -> None:
        """A template may write earlier messages otherwise, as those that drop a reply's thoughts: then all is read
        anew."""
        from transformers import DynamicCache

        goes_on = self.read == ids[: len(self.read)] and len(self.read) < len(ids)
        if self.cache is None or not goes_on:
            self.cache, self.read = DynamicCache(config=self.model.config), []


class InterruptedReply(KeyboardInterrupt):
    """Ctrl-C while a reply was written; it is kept as far as it came."""


def converse(chat: Chat, prompt: str | None) -> None:
    """Turn by turn at a terminal; elsewhere, or with a ``prompt`` alone, one turn."""
    at_terminal = sys.stdin is not None and sys.stdin.isatty()
    if at_terminal:
        with suppress(ImportError):  # where there is one, input() has arrow keys and a history
            importlib.import_module("readline")
    if prompt is not None:
        chat.reply(prompt)
        chat.write("\n")
    elif not at_terminal:
        raise InputError("a chat needs a terminal; without one, give its first message with --prompt")
    interrupted = False
    while at_terminal:
        try:
            text = input("> ")
            interrupted = False
            if text.strip():
                chat.reply(text)
                chat.write("\n")
        except EOFError:
            chat.write("\n")
            return
        except InterruptedReply:
            interrupted = True
            chat.write(f"\n{STOP}\n")
        except KeyboardInterrupt:
            chat.write("\n")
            if interrupted:
                return
            interrupted = True
            chat.write(f"{STOP}\n")
