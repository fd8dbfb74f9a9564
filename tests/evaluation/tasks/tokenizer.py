"""A tokenizer of words, with a token at the beginning of every text, for which transformers is not needed."""

from __future__ import annotations

import re
from typing import Any


class Words:
    eos_token_id: int | None = None
    chat_template: str | None = None

    def __init__(self) -> None:
        self.known: dict[str, int] = {"<begin>": 0}

    def __call__(self, text: str, *, add_special_tokens: bool = True, verbose: bool = True) -> dict[str, list[int]]:
        pieces = re.findall(r"\w+|\W", text)
        ids = [self.known.setdefault(piece, len(self.known)) for piece in pieces]
        return {"input_ids": [0, *ids] if add_special_tokens else ids}

    def decode(self, ids: list[int]) -> str:
        texts = list(self.known)
        return "".join(texts[i] for i in ids)


class Ending(Words):
    """Ends every text, as some do."""

    eos_token_id = 1

    def __init__(self) -> None:
        super().__init__()
        self.known["<end>"] = 1

    def __call__(self, text: str, *, add_special_tokens: bool = True, verbose: bool = True) -> dict[str, list[int]]:
        ids = super().__call__(text, add_special_tokens=add_special_tokens)["input_ids"]
        return {"input_ids": [*ids, 1] if add_special_tokens else ids}


class Chatting(Words):
    chat_template = "yes"

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> str:
        assert options == {"add_generation_prompt": True, "tokenize": False}
        (message,) = messages
        return f"[{message['role']}] {message['content']} [assistant] "
