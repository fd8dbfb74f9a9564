"""What ``units=`` may be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from contentrope.errors import InputError
from contentrope.units import FixedLength, Rule, Terminators, TextRule, vocabulary_of
from contentrope.units.automata import KINDS
from contentrope.units.rules import token_ids


def rule_of(
    units: str | int | Rule | Iterable[int], tokenizer: Any, marker: str | None, vocabulary_size: int = 0
) -> Rule:
    """A kind of text ("line"), a fixed length, token ids that end a unit, or a rule of one's own.

    >>> rule_of(8, None, None)
    FixedLength(n=8)
    >>> rule_of({3, 1}, None, None)
    Terminators(ids=(1, 3))
    """
    if isinstance(units, str):
        if units not in KINDS:
            raise InputError(f"units {units!r} is no kind of text; choose {', '.join(KINDS)}, or pass a rule")
        if tokenizer is None:
            raise InputError(f"units {units!r} are found in the text: pass the tokenizer too")
        return TextRule(units, texts_of(tokenizer, vocabulary_size), marker=marker)
    if marker is not None:
        raise InputError(f"marker {marker!r} belongs to units='record' or 'document', not to {units!r}")
    if isinstance(units, int) and not isinstance(units, bool):
        return FixedLength(units)
    if isinstance(units, Rule):
        return units
    if isinstance(units, Iterable):
        return Terminators(units)
    raise InputError(f"units is {units!r}: pass a kind of text, a length, token ids or a rule")


def texts_of(tokenizer: Any, vocabulary_size: int) -> list[str]:
    """The text of every token id.

    Embeddings are often filled up to a round ``vocabulary_size``: ids the tokenizer does not know stand for no text.
    """
    known = vocabulary_of(tokenizer)
    return known + [""] * (vocabulary_size - len(known))


def reader_of(reader: str | Iterable[int], tokenizer: Any) -> tuple[int, ...]:
    """The token ids that mark where the reader begins, from which on units read others.

    >>> reader_of({4, 2}, None)
    (2, 4)
    """
    if not isinstance(reader, str):
        return token_ids("reader", reader)
    if tokenizer is None:
        raise InputError(f"reader {reader!r} is found in the text: pass the tokenizer too, or token ids")
    found = tuple(i for i, text in enumerate(vocabulary_of(tokenizer)) if reader in text)
    if not found or not reader:
        raise InputError(f"no token contains the reader {reader!r}; pass the ids of the tokens it is made of")
    return found
