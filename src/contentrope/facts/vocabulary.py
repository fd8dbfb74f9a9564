"""One id per character, and one per role marker."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable

from torch import Tensor

from contentrope.errors import InputError
from contentrope.facts.relations import ROLES

PADDING = 0


def marker(role: str) -> str:
    """How a role is written in a fact: one token.

    >>> marker("son")
    '<son>'
    """
    return f"<{role}>"


class FactVocabulary:
    """Padding, letters, space, punctuation, ``;``, ``|`` and the role markers.

    >>> vocabulary = FactVocabulary()
    >>> ids = vocabulary.encode("<son> adam;")
    >>> len(vocabulary), len(ids), vocabulary.decode(ids)
    (63, 7, '<son> adam;')
    """

    def __init__(self) -> None:
        self.symbols = ("", *string.ascii_lowercase, " ", ",", ".", "-", ";", "|", *map(marker, ROLES))
        """What each id stands for; padding stands for nothing."""
        self._ids = {symbol: identifier for identifier, symbol in enumerate(self.symbols) if symbol}

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, text: str) -> list[int]:
        return [self.id_of(symbol) for symbol in re.findall(r"<[^<>]*>|.", text, re.DOTALL)]

    def decode(self, ids: Iterable[int] | Tensor) -> str:
        if isinstance(ids, Tensor):
            if ids.ndim != 1:
                raise InputError(f"decode takes one row of ids, got shape {tuple(ids.shape)}; decode row by row")
            ids = ids.tolist()
        return "".join(self.symbols[self._checked(int(identifier))] for identifier in ids)

    def id_of(self, symbol: str) -> int:
        """The id of one character or role marker.

        >>> FactVocabulary().id_of("a")
        1
        """
        if symbol not in self._ids:
            raise InputError(
                f"{symbol!r} is not among the {len(self)} symbols; "
                "use lowercase letters, space, the characters , . - ; | and role markers such as <son>"
            )
        return self._ids[symbol]

    def _checked(self, identifier: int) -> int:
        if not 0 <= identifier < len(self):
            raise InputError(f"id {identifier} lies outside the vocabulary (ids 0..{len(self) - 1})")
        return identifier
