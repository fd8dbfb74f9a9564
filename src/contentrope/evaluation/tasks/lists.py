"""Lists that are read as a whole: variables that take over values, frequent words, keys and values."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from random import Random

from contentrope.corpora.long_context import KeyValues
from contentrope.evaluation.tasks.example import PLACES, Case, Example, chosen
from contentrope.evaluation.tasks.fitting import Plan
from contentrope.evaluation.tasks.haystacks import noise
from contentrope.evaluation.tasks.words import compounds, identifiers, letters, numbers

HOPS = 4
COMMON, COMMON_TIMES, OTHER_TIMES = 10, 30, 3
FREQUENT = 3
ZETA_2 = 1.6449340668482264
PER_LINE = 10
"""Words on a line: one line for all would be a single unit."""


def tracked_variables(case: Case) -> Plan:
    """``vt``: a value, handed on from variable to variable; all of them are asked for. With a short worked example."""
    draw = case.draw()
    names, values = letters(draw, 5), numbers(draw, digits=5)
    chain, shown = ([name.upper() for name in islice(names, HOPS + 1)] for _ in range(2))
    value, other = next(values), next(values)
    told = list(zip(sorted([case.place, *case.other_places(HOPS, draw)]), _handed_on(chain, value), strict=True))
    few = noise(HOPS, list(zip(range(0, PLACES, PLACES // HOPS - 1), _handed_on(shown, other), strict=False)))
    solved = _solved(_of_variables(shown, other, few), ", ".join(shown))

    def build(lines: int) -> Example:
        asked = _of_variables(chain, value, noise(lines, told))
        return asked._replace(prompt=solved + asked.prompt)

    return Plan(build, least=HOPS)


def _handed_on(chain: list[str], value: str) -> list[str]:
    return [f"Let {name} = {source}." for name, source in zip(chain, [value, *chain[:-1]], strict=True)]


def _solved(asked: Example, answer: str) -> str:
    return f"{asked.prompt}{asked.answer_prefix} {answer}.\n\n"


def _of_variables(chain: list[str], value: str, context: str) -> Example:
    prompt = (
        "Variables are given values in the text below, some of them that of another variable.\n\n"
        f"{context}\n\nWhich variables have the value {value}? There are {len(chain)} of them.\n"
    )
    return Example(prompt, f"The variables that have the value {value} are", tuple(chain), new_tokens=30)


def common_words(case: Case) -> Plan:
    """``cwe``: ten words that come thirty times, among words that come three times. With a short worked example."""
    words = compounds(case.draw())
    shown, once, chosen = (list(islice(words, count)) for count in (COMMON, COMMON // 2, COMMON))
    example = _of_common_words(case.draw("worked"), shown, 3, once, 1)
    solved, drawn = _solved(example, " ".join(_numbered(shown))), len(shown) + len(once) + len(chosen)

    def build(others: int) -> Example:
        rare = list(islice(compounds(case.draw()), drawn, drawn + others))
        asked = _of_common_words(case.draw("order"), chosen, COMMON_TIMES, rare, OTHER_TIMES)
        return asked._replace(prompt=solved + asked.prompt)

    return Plan(build, least=1)


def _of_common_words(draw: Random, common: list[str], times: int, others: list[str], other_times: int) -> Example:
    words = common * times + others * other_times
    draw.shuffle(words)
    prompt = (
        f"Below is a list of words. Some come often, most of them seldom.\n\n{_lines(_numbered(words))}\n\n"
        f"Which {len(common)} words come most often in the list?\n"
    )
    return Example(prompt, f"The {len(common)} words that come most often are", tuple(common), new_tokens=120)


def frequent_words(case: Case) -> Plan:
    """``fwe``: words that mean nothing, the k-th as often as 1 / k squared; the first three are asked for."""

    def build(count: int) -> Example:
        times = [int(count / (rank * rank * ZETA_2)) for rank in range(1, count)]
        times = [number for number in times if number]
        times += [1] * (count - sum(times))
        kinds = list(islice(letters(case.draw(), 6), len(times)))
        words = [word for word, number in zip(kinds, times, strict=True) for _ in range(number)]
        case.draw("order").shuffle(words)
        prompt = (
            f"Below is a text in an unknown language.\n\n{_lines(words)}\n\n"
            f"Which {FREQUENT} words come most often in the text?\n"
        )
        prefix = f"The {FREQUENT} words that come most often are"
        return Example(prompt, prefix, tuple(kinds[:FREQUENT]), new_tokens=50)

    return Plan(build, least=60)  # fewer would not tell the third word from the fourth


def made_pairs(case: Case, count: int | None = None) -> Plan:
    """``kv``: a JSON object of random identifiers, with ``count`` keys or as many as fit; one value is asked for."""

    def build(pairs: int) -> Example:
        drawn = identifiers(case.draw())
        told = tuple((next(drawn), next(drawn)) for _ in range(pairs))
        return asked_pair(KeyValues(told, *told[0]), case)

    return Plan(build, least=count or 2, most=count)


def given_pairs(case: Case, lists: list[KeyValues]) -> Plan:
    """``kv_75``: one of the lists that are there."""
    return Plan(lambda pairs: asked_pair(chosen(case, lists), case), least=0, most=0)


def asked_pair(told: KeyValues, case: Case) -> Example:
    """The pair that is asked for is moved to its place."""
    others = [pair for pair in told.pairs if pair[0] != told.key]
    pairs = case.put((told.key, told.value), others)
    context = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in pairs)
    prompt = (
        f"Below is a JSON object. Give the value of one of its keys.\n\n{{{context}}}\n\nKey: {json.dumps(told.key)}\n"
    )
    return Example(prompt, f"Value of {json.dumps(told.key)}:", (told.value,), new_tokens=48)


def _numbered(words: Iterable[str]) -> list[str]:
    return [f"{number}. {word}" for number, word in enumerate(words, start=1)]


def _lines(words: list[str]) -> str:
    return "\n".join(" ".join(words[begin : begin + PER_LINE]) for begin in range(0, len(words), PER_LINE))
