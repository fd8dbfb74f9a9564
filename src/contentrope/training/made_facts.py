"""Facts that nobody can know beforehand, with lines that state them and a question that asks for them.

They must be looked up in the context, not remembered. Words, phrases and forms are so varied that none is learned by
heart.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from numpy.random import Generator

ADJECTIVES, NOUNS, SYLLABLES, QUALITIES = (
    words.split()
    for words in (
        """amber bitter brisk calm clever crimson distant dusty eager early faded fierce gentle golden hidden hollow
        idle ivory kindly lonely mellow misty modest narrow northern odd patient pale quiet restless rusty scarlet
        silent silver sleepy solemn sturdy tender velvet wandering""",
        """anchor barn bridge candle canyon cellar chapel cottage engine falcon ferry garden glacier harbor hill island
        kettle lantern ledger market meadow mill mirror orchard otter parlor pebble pilot quarry raven river saddle
        school station tailor temple thicket tower valley wagon""",
        """ba be bri cor dal dor el fen gar hil is jo ka ki lan lo mar mi na nor ol pe qua ra rin sa sel ta tol u ven wi
        xa yor zu""",
        """account address age badge code colour date door file label locker name number owner password price room size
        symbol weight""",
    )
)


def _words(rng: Generator) -> str:
    return f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"


def _noun(rng: Generator) -> str:
    return str(rng.choice(NOUNS))


def _name(rng: Generator) -> str:
    return "".join(rng.choice(SYLLABLES, size=int(rng.integers(2, 5)))).capitalize()


def _digits(rng: Generator) -> str:
    return "".join(map(str, rng.integers(0, 10, size=int(rng.integers(3, 10)))))


def _uuid(rng: Generator) -> str:
    return str(uuid.UUID(bytes=rng.bytes(16), version=4))


def _numbered(rng: Generator) -> str:
    return f"{rng.choice(NOUNS)} {rng.integers(1, 10_000)}"


Draw = Callable[[Generator], str]
KEYS: tuple[Draw, ...] = (_words, _name, _numbered, _uuid, _digits)
VALUES: tuple[Draw, ...] = (_digits, _digits, _words, _noun, _name, _uuid)
STYLES = (
    ("The {what} of {key} is {value}.", "The {what} of {key} is", " {value}."),
    ("{key} has the {what} {value}.", "Which {what} does {key} have? Answer:", " {value}"),
    ("Remember: {key}, {what} {value}.", "As noted above, {key}, {what}", " {value}."),
    ("For {key} the {what} was set to {value}.", "Question: what was the {what} of {key} set to?\nAnswer:", " {value}"),
    ("Whoever asks for the {what} of {key} is told: {value}", "Q: the {what} of {key}?\nA:", " {value}"),
    ('  "{key}": "{value}",', 'Look up "{key}":', ' "{value}"'),
    ('{{"{what}": "{key}", "value": "{value}"}}', '{{"{what}": "{key}", "value":', ' "{value}"}}'),
    ("{key} = {value}", "{key} =", " {value}"),
    ("- {key}: {value}", "From the list, {key}:", " {value}"),
    ("| {key} | {value} |", "| {key} |", " {value} |"),
)
"""A line that states a fact, what asks for it, and the answer."""
MOST_VALUES = 4
SEVERAL_VALUES = 0.2
"""The share of texts in which everything has several values, each in a line of its own."""


@dataclass(frozen=True)
class Fact:
    """``lines`` stand in the text, one for each value; at its end ``question`` is followed by ``answer``."""

    lines: tuple[str, ...]
    question: str
    answer: str


def made_facts(rng: Generator) -> Iterator[Fact]:
    """Facts without end, all of one form, each about something else.

    >>> import numpy
    >>> from itertools import islice
    >>> first, second = islice(made_facts(numpy.random.default_rng(5)), 2)
    >>> first.question in first.lines[0], first.question in second.lines[0], first.answer.strip() in first.question
    (True, False, False)
    """
    line, question, answer = STYLES[rng.integers(len(STYLES))]
    draw_key, draw_value = KEYS[rng.integers(len(KEYS))], VALUES[rng.integers(len(VALUES))]
    count = int(rng.integers(2, MOST_VALUES + 1)) if rng.random() < SEVERAL_VALUES else 1
    what, seen = str(rng.choice(QUALITIES)), set[str]()
    while True:
        key, values = draw_key(rng), [draw_value(rng) for _ in range(count)]
        if key in seen:
            key += f" {len(seen)}"
        seen.add(key)
        words = {"what": what, "key": key}
        yield Fact(
            tuple(line.format(**words, value=value) + "\n" for value in values),
            question.format(**words),
            answer.format(value=", ".join(values)),
        )
