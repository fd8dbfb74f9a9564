"""A text as any tokenizer sees it: ids to train on, ids held out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from contentrope.corpora import fingerprint, shakespeare_text, standard_library_text, text_of
from contentrope.corpora.corpus import STDLIB_CHARACTERS
from contentrope.errors import InputError

TRAINING_SHARE = 0.9


@dataclass(frozen=True)
class Text:
    """What is trained on, what is held out, and what both are."""

    training: str
    held_out: str
    description: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Encoded:
    training: Int[Tensor, "training"]
    held_out: Int[Tensor, "held_out"]


def read_text(sources: Sequence[str], characters: int | None = None) -> Text:
    """The texts one after the other; nine tenths of the characters are for training.

    >>> text = read_text(["stdlib"], characters=1_000)
    >>> len(text.training), len(text.held_out)
    (900, 100)
    """
    whole = _joined([_source(source, characters) for source in sources])
    if characters is not None and not 1 <= characters <= len(whole):
        raise InputError(f"characters must be from 1 to {len(whole)}, the length of the text; got {characters}")
    whole = whole[:characters]
    cut = int(len(whole) * TRAINING_SHARE)
    if not cut:
        raise InputError(f"{', '.join(sources)}: a text of {len(whole)} characters cannot be split; take more")
    description = {
        "name": ", ".join(os.path.basename(os.path.abspath(source)) for source in sources),
        "characters": len(whole),
        "sha256": fingerprint(whole),
        "training": cut,
        "held_out": len(whole) - cut,
    }
    return Text(whole[:cut], whole[cut:], description)


def encode(text: Text, tokenizer: Any) -> Encoded:
    return Encoded(ids_of(text.training, tokenizer), ids_of(text.held_out, tokenizer))


def ids_of(text: str, tokenizer: Any) -> Int[Tensor, "tokens"]:
    """Without special tokens: windows are cut from anywhere."""
    return torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=torch.int64)


def _source(source: str, characters: int | None) -> str:
    if source == "shakespeare":
        return shakespeare_text()
    if source == "stdlib":
        return standard_library_text(STDLIB_CHARACTERS if characters is None else characters)
    return text_of(source)


def _joined(texts: list[str]) -> str:
    ended = [text if text.endswith("\n") else text + "\n" for text in texts[:-1]]
    return "".join([*ended, *texts[-1:]])
