"""Rows of tokens out of rows of pieces: names, markers, words and whatever else repeats is encoded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from contentrope.facts.vocabulary import PADDING

EMPTY = 0
"""The piece without tokens: a place that a row does not use."""


class Rows(NamedTuple):
    """Tokens, padded at the end."""

    ids: Int[Tensor, "rows tokens"]
    lengths: Int[Tensor, "rows"]
    marked: Bool[Tensor, "rows tokens"]


class PieceTable:
    """The tokens of all pieces in one line. Groups of pieces are added, then :meth:`freeze` makes the table.

    >>> table = PieceTable(lambda text: [ord(character) for character in text])
    >>> first = table.add(["to", "be"])
    >>> table.freeze("cpu")
    >>> table.assemble(torch.tensor([[first, EMPTY, first + 1]]), torch.tensor([[False, False, True]]), width=5)[0]
    tensor([[116, 111,  98, 101,   0]])
    """

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        self._encode = encode
        self._pieces: list[list[int]] = [[]]

    def add(self, texts: Sequence[str]) -> int:
        """The first of their ids, which follow each other."""
        first = len(self._pieces)
        self._pieces += map(self._encode, texts)
        return first

    def freeze(self, device: torch.device | str) -> None:
        # One token more: a row that ends with an empty piece points there.
        flat = [token for piece in self._pieces for token in piece] + [PADDING]
        self.tokens = torch.tensor(flat, device=device)
        self.lengths = torch.tensor(list(map(len, self._pieces)), device=device)
        self.starts = self.lengths.cumsum(0) - self.lengths

    def assemble(self, pieces: Int[Tensor, "rows pieces"], marked: Bool[Tensor, "rows pieces"], width: int) -> Rows:
        """Write the pieces of each row one after the other; tokens of marked pieces are marked."""
        lengths = self.lengths[pieces]
        ends = lengths.cumsum(1)
        column = torch.arange(width, device=pieces.device).expand(len(pieces), -1)
        # The piece a token belongs to is the first that ends after it; beyond the row any will do.
        which = torch.searchsorted(ends, column.contiguous(), right=True).clamp(max=pieces.shape[1] - 1)
        shift = self.starts[pieces] - (ends - lengths)
        inside = column < ends[:, -1:]
        source = torch.where(inside, column + shift.gather(1, which), len(self.tokens) - 1)
        return Rows(self.tokens[source], ends[:, -1], marked.gather(1, which) & inside)
