"""A question as ``generate`` takes it: token ids and mask of everything, and the cache of what is read already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from contentrope.errors import CacheError, InputError, quoted
from contentrope.hf.plain import require_embedded
from contentrope.store.cache import SetCache

Asked = str | Sequence[int] | Tensor


def ids_of(text: Asked, tokenizer: Any, what: str) -> list[int]:
    """Token ids of a text, or as they are given. No special tokens are added: it stands among other texts."""
    if isinstance(text, str):
        if tokenizer is None:
            raise InputError(f"the {what} {quoted(text)} is text, and the store has no tokenizer: open it with one")
        found = list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    elif isinstance(text, Tensor):
        found = text.flatten().tolist()
    else:
        found = list(text)
    if not found:
        raise InputError(f"a {what} is empty ({quoted(text)}): it has no token; leave it out")
    if not all(type(number) is int and number >= 0 for number in found):
        raise InputError(f"a {what} is {quoted(text)}: pass text, or token ids")
    return found


def inputs_of(questions: list[list[int]], cache: SetCache, padding: int) -> dict[str, Any]:
    """Arguments of ``generate``; shorter questions are padded on the left, between the set and themselves."""
    if cache.has_read_on:
        raise CacheError("something was read behind the set; call cache.rewind() to ask something else")
    columns = cache.state.columns
    assert columns is not None
    if columns.batch == 1 and len(questions) > 1:
        cache.batch_repeat_interleave(len(questions))
    if columns.batch != len(questions):
        raise InputError(f"there are {len(questions)} questions and {columns.batch} sets: pass one question for each")
    longest = max(map(len, questions))
    if cache.has_sliding and any(len(question) < longest for question in questions):
        raise InputError(
            "layers of this model have a sliding window of attention, which padding before a shorter question would "
            "fill; ask questions of one length together, or one after the other"
        )
    asked = torch.full((len(questions), longest), padding)
    for row, question in zip(asked, questions, strict=True):
        row[longest - len(question) :] = torch.tensor(question)
    lengths = torch.tensor([[len(question)] for question in questions])
    is_token = torch.arange(longest) >= longest - lengths
    ids, valid = (columns.fact(name, 0, cache.tokens) for name in ("ids", "valid"))
    return {
        "input_ids": torch.cat((ids, asked.to(ids.device)), dim=1),
        "attention_mask": torch.cat((valid, is_token.to(valid)), dim=1),
        "past_key_values": cache,
    }


def check_embedded(ids: Sequence[int], config: Any) -> None:
    """Refuse ids that the model has no embedding for."""
    require_embedded(torch.tensor(ids), config, "the store")
