"""One id per character."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from contentrope.errors import InputError

UNKNOWN = "\ufffd"
"""The Unicode replacement character: how a decoded text shows what the vocabulary does not know."""


@dataclass(frozen=True)
class CharVocabulary:
    """The characters of a text, sorted; a character's id is its place among them.

    >>> vocabulary = CharVocabulary.from_text("to be\\n")
    >>> vocabulary.encode("bet")
    [2, 3, 5]
    >>> vocabulary.decode([2, 3, 5])
    'bet'

    Other characters are refused, unless one symbol, ``unknown``, stands for all of them:

    >>> forgiving = CharVocabulary.from_text("to be\\n", unknown="?")
    >>> forgiving.decode(forgiving.encode("to bed"))
    'to be?'
    """

    symbols: tuple[str, ...]
    unknown: str | None = None
    _codes: NDArray[np.uint32] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        symbols = tuple(self.symbols)
        for symbol in symbols:
            if not isinstance(symbol, str) or len(symbol) != 1:
                raise InputError(f"a symbol must be one character, got {symbol!r}")
        if not symbols:
            raise InputError("a vocabulary needs at least one symbol; build it from a text that is not empty")
        if list(symbols) != sorted(set(symbols)):
            raise InputError("symbols must be sorted and distinct; use CharVocabulary.from_text")
        if self.unknown is not None and self.unknown not in symbols:
            raise InputError(f"unknown must be one of the symbols, got {self.unknown!r}; use CharVocabulary.from_text")
        object.__setattr__(self, "symbols", symbols)
        object.__setattr__(self, "_codes", _code_points("".join(symbols)))

    @classmethod
    def from_text(cls, text: str, *, unknown: str | None = None) -> CharVocabulary:
        """The characters of ``text`` and, if given, the one that stands for all others (see :data:`UNKNOWN`).

        A text that itself holds ``unknown`` loses nothing but the difference between the two.
        """
        if not text:
            raise InputError("an empty text has no vocabulary; give one that is not empty")
        return cls(tuple(sorted({*text} if unknown is None else {*text, unknown})), unknown)

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, text: str) -> list[int]:
        return self.encode_tensor(text).tolist()

    def encode_tensor(self, text: str) -> Int[Tensor, "characters"]:
        """The ids of a text as int64: the quick form of :meth:`encode`, for texts of millions of characters.

        >>> CharVocabulary.from_text("to be").encode_tensor("bet")
        tensor([1, 2, 4])
        """
        if not isinstance(text, str):
            raise InputError(f"only a str can be encoded, got {type(text).__name__}; decode bytes first")
        points = _code_points(text)
        ids = np.searchsorted(self._codes, points).astype(np.int64)  # symbols are sorted by code point
        ids[ids == len(self)] = 0  # beyond the last symbol: found unequal below
        unseen = self._codes[ids] != points
        if unseen.any():
            if self.unknown is None:
                raise self._refusal(text, int(unseen.argmax()))
            ids[unseen] = self.symbols.index(self.unknown)
        return torch.from_numpy(ids)

    def unseen(self, text: str) -> int:
        """How many characters of a text are no symbols of their own.

        >>> CharVocabulary.from_text("to be", unknown="?").unseen("bet?!")
        2
        """
        own = {*self.symbols} - {self.unknown}
        return sum(character not in own for character in text)

    def decode(self, ids: Iterable[int] | Tensor) -> str:
        if isinstance(ids, Tensor):
            if ids.ndim != 1:
                raise InputError(f"decode takes one row of ids, got shape {tuple(ids.shape)}; decode row by row")
            ids = ids.tolist()
        ids = [int(i) for i in ids]
        for i in ids:
            if not 0 <= i < len(self):
                raise InputError(f"id {i} lies outside the vocabulary (ids 0..{len(self) - 1})")
        return "".join(self.symbols[i] for i in ids)

    def id_of(self, character: str) -> int:
        """The id of one symbol, such as the newline that ends a line; never that of ``unknown`` in its stead.

        >>> CharVocabulary.from_text("to be\\n").id_of("\\n")
        0
        """
        if len(character) != 1:
            raise InputError(f"id_of takes one character, got {character!r}; use encode for a longer text")
        if character not in self.symbols:
            raise self._refusal(character, 0)
        return self.symbols.index(character)

    def to_dict(self) -> dict[str, Any]:
        """Its symbols, with a checksum: another symbol in its place would be read and written without a word."""
        stored = {"symbols": "".join(self.symbols)}
        stored |= {} if self.unknown is None else {"unknown": self.unknown}
        return {**stored, "sha256": _checksum(stored)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CharVocabulary:
        if not isinstance(data, Mapping):
            raise InputError(f"a stored vocabulary is a JSON object, got {data!r}")
        if not {"symbols"} <= set(data) <= {"symbols", "unknown", "sha256"}:
            raise InputError(
                f"a stored vocabulary has the key 'symbols' and at most 'unknown' and 'sha256', got {sorted(data)}"
            )
        for key, value in data.items():
            if not isinstance(value, str):
                raise InputError(f"{key!r} of a stored vocabulary must be a str, got {value!r}")
        stored = {key: value for key, value in data.items() if key != "sha256"}
        if data.get("sha256", _checksum(stored)) != _checksum(stored):  # version 0.1 stored none
            raise InputError("its symbols are not those it was stored with; restore it from a copy")
        return cls(tuple(data["symbols"]), data.get("unknown"))

    def _refusal(self, text: str, place: int) -> InputError:
        return InputError(
            f"character {text[place]!r} at position {place} is not among the {len(self)} symbols; "
            "build the vocabulary from text that contains it, or replace it first"
        )


def _code_points(text: str) -> NDArray[np.uint32]:
    # A lone surrogate is no valid text, but a str can hold one.
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def _checksum(stored: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(stored, sort_keys=True).encode()).hexdigest()
