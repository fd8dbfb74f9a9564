"""Texts as token ids of any tokenizer; a tokenizer of characters, saved and loaded like any other."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from contentrope.corpora import UNKNOWN, Text


class Encoded(NamedTuple):
    """A text as token ids."""

    training: Int[Tensor, "training"]
    held_out: Int[Tensor, "held_out"]


def encode(text: Text, tokenizer: Any) -> Encoded:
    """Both parts as the tokenizer's ids, without special tokens: windows are cut from anywhere."""
    parts = (tokenizer(part, add_special_tokens=False, verbose=False) for part in (text.training, text.held_out))
    return Encoded(*(torch.tensor(part["input_ids"], dtype=torch.int64) for part in parts))


def character_tokenizer(text: str) -> Any:
    """One token for every character of ``text``, in their order, and one for all others.

    >>> tokenizer = character_tokenizer("to be\\n")
    >>> tokenizer.decode(tokenizer("bet on\\n")["input_ids"])
    'bet o�\\n'
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    symbols = sorted({*text, UNKNOWN})
    letters = Tokenizer(models.WordLevel({symbol: place for place, symbol in enumerate(symbols)}, unk_token=UNKNOWN))
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    letters.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=letters, unk_token=UNKNOWN, clean_up_tokenization_spaces=False)
