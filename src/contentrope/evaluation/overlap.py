"""Short answers against references, as SQuAD scores them: exact match and F1."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from contentrope.errors import InputError

ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Overlap(NamedTuple):
    """How well an answer agrees with the reference that it agrees with best, each from 0 to 1."""

    exact: float
    f1: float


def overlap(answer: str, references: Sequence[str]) -> Overlap:
    """The best over all references, each of the two for itself.

    >>> overlap("the Norman conquest of 1066", ["Norman Conquest", "1066"])
    Overlap(exact=0.0, f1=0.6666666666666666)
    >>> overlap("An apple.", ["pear", "Apple"])
    Overlap(exact=1.0, f1=1.0)
    """
    if isinstance(references, str) or not references:
        raise InputError(f"references is {references!r}: pass a list of one or more answers")
    said = normalised(answer)
    found = [(said == words, _f1(said, words)) for words in map(normalised, references)]
    return Overlap(float(any(exact for exact, _ in found)), max(f1 for _, f1 in found))


def normalised(text: str) -> list[str]:
    """Words in lower case, without punctuation and articles.

    >>> normalised("The  Norman Conquest, of 1066.")
    ['norman', 'conquest', 'of', '1066']
    """
    return ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split()


def _f1(said: list[str], reference: list[str]) -> float:
    """Of the words as multisets; two answers without a word agree."""
    if not said or not reference:
        return float(said == reference)
    common = (Counter(said) & Counter(reference)).total()
    return 2 * common / (len(said) + len(reference))
