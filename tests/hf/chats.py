"""A tokenizer of characters with chat templates, and files of conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from contentrope.hf.characters import character_tokenizer

LETTERS = "abcdefgh <>/userasitmn\n"
PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
MARKED = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}</>{% endgeneration %}{% else %}{{ m.content }}</>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
FORGETFUL = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content if loop.last else m.content[:1] }}</>\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""Cuts what is not the last message, as templates do that drop earlier thoughts."""


def chat_tokenizer(template: str | None = PLAIN) -> Any:
    tokenizer = character_tokenizer(LETTERS)
    tokenizer.chat_template = template
    return tokenizer


def conversation(*texts: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def write_chats(path: Path, *chats: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    return path
