"""One id per character."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from contentrope.errors import InputError


@dataclass(frozen=True)
class CharVocabulary:
    """The characters of a text, sorted; a character's id is its place among them.

    >>> vocabulary = CharVocabulary.from_text("to be\\n")
    >>> vocabulary.encode("bet")
    [2, 3, 5]
    >>> vocabulary.decode([2, 3, 5])
    'bet'
    """

    symbols: tuple[str, ...]
    _ids: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        symbols = tuple(self.symbols)
        for symbol in symbols:
            if not isinstance(symbol, str) or len(symbol) != 1:
                raise InputError(f"a symbol must be one character, got {symbol!r}")
        if not symbols:
            raise InputError("a vocabulary needs at least one symbol; build it from a text that is not empty")
        if list(symbols) != sorted(set(symbols)):
            raise InputError("symbols must be sorted and distinct; use CharVocabulary.from_text")
        object.__setattr__(self, "symbols", symbols)
        object.__setattr__(self, "_ids", {symbol: place for place, symbol in enumerate(symbols)})

    @classmethod
    def from_text(cls, text: str) -> CharVocabulary:
        return cls(tuple(sorted(set(text))))

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, text: str) -> list[int]:
        try:
            return [self._ids[character] for character in text]
        except KeyError:
            place = next(i for i, character in enumerate(text) if character not in self._ids)
            raise InputError(
                f"character {text[place]!r} at position {place} is not among the {len(self)} symbols; "
                "build the vocabulary from text that contains it, or replace it first"
            ) from None

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.symbols[self._checked(int(i))] for i in ids)

    def id_of(self, character: str) -> int:
        """The id of one character, such as the newline that ends a line.

        >>> CharVocabulary.from_text("to be\\n").id_of("\\n")
        0
        """
        if len(character) != 1:
            raise InputError(f"id_of takes one character, got {character!r}; use encode for a longer text")
        return self.encode(character)[0]

    def to_dict(self) -> dict[str, Any]:
        return {"symbols": "".join(self.symbols)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CharVocabulary:
        if set(data) != {"symbols"}:
            raise InputError(f"a stored vocabulary has the one key 'symbols', got {sorted(data)}")
        return cls(tuple(data["symbols"]))

    def _checked(self, identifier: int) -> int:
        if not 0 <= identifier < len(self):
            raise InputError(f"id {identifier} lies outside the vocabulary (ids 0..{len(self) - 1})")
        return identifier
