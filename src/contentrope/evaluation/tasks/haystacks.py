"""What needles are hidden in: short lines that say nothing, or prose with its paragraphs as they are."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from functools import cached_property, lru_cache
from random import Random

import numpy as np

from contentrope.errors import InputError
from contentrope.evaluation.tasks.example import PLACES

NOISE = (
    "The kettle stands on the stove.",
    "A cart goes down the lane.",
    "The rain has stopped again.",
    "Somebody closes a window.",
    "The clock ticks as before.",
)
"""Lines that say nothing, again and again."""
SENTENCE_END = re.compile(r"(?<!\bMr)(?<!\bMrs)(?<!\bDr)(?<!\bSt)[.!?][”’\"')]*\s+")


def noise(lines: int, needles: Iterable[tuple[int, str]]) -> str:
    """So many lines that say nothing, with needles at their places, each on a line of its own."""
    hay = [NOISE[line % len(NOISE)] + "\n" for line in range(lines)]
    cuts = np.cumsum([0, *map(len, hay)]).tolist()
    return hidden("".join(hay), cuts, needles, gap="\n").removesuffix("\n")


class Prose:
    """A text of which parts are taken, with its line breaks: units are lines and sentences.

    >>> Prose("One day. Two days.\\n\\nAnd so on.").part(Random(0), 4, [(0, "Look!"), (39, "There.")])
    'Look! And so on.\\n\\nOne There.'
    """

    def __init__(self, text: str) -> None:
        self.text = text
        if not len(self._words):
            raise InputError("the text to hide things in has no words; give another")

    def part(self, draw: Random, words: int, needles: Iterable[tuple[int, str]]) -> str:
        """So many words from the beginning of some paragraph on, with needles between sentences.

        Where the text ends it begins again.
        """
        first = int(draw.choice(self._paragraphs))
        parts = []
        while words:
            last = min(first + words, len(self._words))
            parts.append(self.text[self._words[first][0] : self._words[last - 1][1]])
            first, words = 0, words - (last - first)
        whole = "\n\n".join(parts)
        cuts = [0, *(found.end() for found in SENTENCE_END.finditer(whole)), len(whole)]
        return hidden(whole, sorted(set(cuts)), needles, gap=" ")

    @cached_property
    def _words(self) -> np.ndarray:
        """Where each word begins and ends."""
        return np.array([found.span() for found in re.finditer(r"\S+", self.text)])

    @cached_property
    def _paragraphs(self) -> list[int]:
        """The words that follow an empty line, else a line's end; the first one always."""
        for gap in (r"\n\s*\n\s*(?=\S)", r"\n\s*(?=\S)"):
            places = [found.end() for found in re.finditer(gap, self.text)]
            if places:
                return [0, *np.searchsorted(self._words[:, 0], places).tolist()]
        return [0]


@lru_cache(maxsize=2)
def prose_of(text: str) -> Prose:
    """Its words are found once."""
    return Prose(text)


def hidden(hay: str, cuts: list[int], needles: Iterable[tuple[int, str]], *, gap: str) -> str:
    """``hay`` with each needle at the cut nearest to its place; ``gap`` parts a needle from its surroundings."""
    parts: list[str] = []
    last = 0
    for place, needle in sorted(needles, key=lambda one: one[0]):
        offset = _nearest(cuts, place * len(hay) / (PLACES - 1))
        before = hay[last:offset] or "".join(parts[-1:])
        parts.append(hay[last:offset] + ("" if not before or before[-1].isspace() else gap))
        parts.append(needle + (gap if offset < len(hay) else ""))
        last = offset
    return "".join(parts) + hay[last:]


def _nearest(cuts: list[int], target: float) -> int:
    after = bisect_left(cuts, target)
    around = cuts[max(0, after - 1) : after + 1]
    return min(around, key=lambda cut: abs(cut - target))
