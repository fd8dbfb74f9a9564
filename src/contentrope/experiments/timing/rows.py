"""The rows of the table: a size, and how many sequences of how many tokens a step sees.

The paper does not say which vocabulary its timing has. With the 65 characters of its other experiment RoPE has 810,049,
85,155,905, 302,444,609 and 680,159,297 parameters, which is what its table rounds to: so 65 it is, at every size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from contentrope.errors import InputError
from contentrope.experiments.sizes import ModelSize

LENGTH = 1024
"""Tokens of a sequence where a row's name does not say."""
VOCABULARY = 65
LONGEST = 2**24

SIZES = {
    "0.8M": (ModelSize(dim=128, layers=4, heads=4), 8),
    "85M": (ModelSize(dim=768, layers=12, heads=12), 4),
    "302M": (ModelSize(dim=1024, layers=24, heads=16), 2),
    "680M": (ModelSize(dim=1536, layers=24, heads=16), 1),
    "3M": (ModelSize(dim=256, layers=4, heads=4), 2),
}
"""Size of the model, and sequences a step at 1,024 tokens; all but the last are the paper's."""


@dataclass(frozen=True)
class Row:
    size: str
    length: int = LENGTH

    @property
    def name(self) -> str:
        """
        >>> Row("85M").name, Row("85M", 8192).name
        ('85M', '85M at 8,192')
        """
        return self.size if self.length == LENGTH else f"{self.size} at {self.length:,}"

    @property
    def model(self) -> ModelSize:
        return SIZES[self.size][0]

    @property
    def batch(self) -> int:
        """Sequences a step: fewer where they are longer, so that a step sees as many tokens, but never more.

        >>> [Row("0.8M", length).batch for length in (256, 1024, 2048, 32768)]
        [8, 8, 4, 1]
        """
        sequences = SIZES[self.size][1]
        return max(1, min(sequences, sequences * LENGTH // self.length))


def parse_row(name: str) -> Row:
    """A row by its name: a size, or a size and the tokens of a sequence.

    >>> parse_row("302M"), parse_row("85M at 8,192")
    (Row(size='302M', length=1024), Row(size='85M', length=8192))
    """
    found = re.fullmatch(r"(\S+)(?: at ([0-9][0-9,]*))?", name)
    if found is None or found[1] not in SIZES:
        raise InputError(f"unknown row {name!r}; write a size or a size and a length, as in 85M or '85M at 8192'; "
                         f"sizes are {', '.join(SIZES)}")  # fmt: skip
    length = int(found[2].replace(",", "")) if found[2] else LENGTH
    if not 2 <= length <= LONGEST:
        raise InputError(f"row {name!r} has sequences of {length} tokens; 2 to {LONGEST:,} can be timed")
    return Row(found[1], length)
