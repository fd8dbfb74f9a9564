"""Codes hidden in a haystack, as RULER has them: the eight tasks of one needle, several, and needles among needles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from random import Random

from contentrope.evaluation.tasks.example import Case, Example
from contentrope.evaluation.tasks.fitting import Plan
from contentrope.evaluation.tasks.haystacks import Prose, noise
from contentrope.evaluation.tasks.words import identifiers, numbers, phrases

NEW_TOKENS = 128
MANY = 4
"""Keys, or values of one key, in the tasks that have several."""

Draws = Callable[[Random], Iterator[str]]
Hay = Callable[[Random, int, list[tuple[int, str]]], str]
"""So many pieces of hay, with needles at their places."""


def in_hay(hay: Hay, case: Case, *, values: Draws = numbers, keys: int = 1, asked: int = 1, codes: int = 1) -> Plan:
    """``keys`` keys with ``codes`` codes each, the first ``asked`` keys asked for; the first needle is at its place."""
    draw = case.draw()
    names, secrets = list(islice(phrases(draw), keys)), values(draw)
    told = [(name, next(secrets)) for name in names for _ in range(codes)]
    places = [case.place, *case.other_places(len(told) - 1, draw)]
    needles = [(place, _needle(*pair)) for place, pair in zip(places, told, strict=True)]

    def build(pieces: int) -> Example:
        return _asking(hay(case.draw("hay"), pieces, needles), told[: asked * codes])

    return Plan(build, least=2)


def among_needles(case: Case, *, names: Draws, values: Draws) -> Plan:
    """Nothing but needles, one a line."""

    def build(pieces: int) -> Example:
        secrets = values(case.draw("values"))
        told = [(name, next(secrets)) for name in islice(names(case.draw("names")), pieces)]
        first, *others = [_needle(*pair) for pair in told]
        return _asking("\n".join(case.put(first, others)), told[:1])

    return Plan(build, least=2)


def in_noise(draw: Random, pieces: int, needles: list[tuple[int, str]]) -> str:
    return noise(pieces, needles)


def needle_tasks(prose: Callable[[], Prose]) -> dict[str, Callable[[Case], Plan]]:
    """The plans of examples by task; ``prose`` is asked for where it is needed."""

    def essay(draw: Random, pieces: int, needles: list[tuple[int, str]]) -> str:
        return prose().part(draw, pieces, needles)

    return {
        "niah_single_1": partial(in_hay, in_noise),
        "niah_single_2": partial(in_hay, essay),
        "niah_single_3": partial(in_hay, essay, values=identifiers),
        "niah_multikey_1": partial(in_hay, essay, keys=MANY),
        "niah_multikey_2": partial(among_needles, names=phrases, values=numbers),
        "niah_multikey_3": partial(among_needles, names=identifiers, values=identifiers),
        "niah_multivalue": partial(in_hay, essay, codes=MANY),
        "niah_multiquery": partial(in_hay, essay, keys=MANY, asked=MANY),
    }


def _needle(name: str, code: str) -> str:
    return f"A secret code of {name} is {code}."


def _asking(context: str, told: list[tuple[str, str]]) -> Example:
    names = list(dict.fromkeys(name for name, _ in told))
    asked = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    several = len(told) > 1
    what = f"secret codes of {asked}" if several else f"secret code of {asked}"
    prompt = (
        "Secret codes are hidden in the text below. Read it with care; at the end you are asked for "
        f"{'some' if several else 'one'} of them.\n\n{context}\n\n"
        f"{'What are all the' if several else 'What is the'} {what} in the text above?\n"
    )
    prefix = f"The {what} in the text above {'are' if several else 'is'}"
    return Example(prompt, prefix, tuple(code for _, code in told), NEW_TOKENS)
