"""A tokenizer of characters, saved and loaded like any other of Hugging Face's."""

from __future__ import annotations

from typing import Any

from contentrope.corpora import UNKNOWN


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
