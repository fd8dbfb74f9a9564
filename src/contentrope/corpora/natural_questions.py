"""Natural Questions with their passages, split so that nothing that is scored is ever trained on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from contentrope.corpora.long_context import Question

SCORED_OF_TEN = 2
ASKED = "Answer with a few words from the documents: {question}?"


class Split(NamedTuple):
    """Questions to train on and to score. They share no question, no passage and no article."""

    training: list[Question]
    scored: list[Question]


def split(questions: Iterable[Question]) -> Split:
    """The same split everywhere: an article's title decides for all its passages, and what the two parts would still
    share is left out of the training.

    >>> made = [Question(f"who is {n}", (f"{n}",), f"It is {n // 2}.", f"Title {n}") for n in range(40)]
    >>> training, scored = split(made)
    >>> len(scored), {one.passage for one in training} & {one.passage for one in scored}
    (9, set())
    """
    parts: tuple[list[Question], list[Question]] = ([], [])
    for one in questions:
        parts[_is_scored(one)].append(one)
    training, scored = parts
    seen = {mark for one in scored for mark in marks(one)}
    return Split([one for one in training if seen.isdisjoint(marks(one))], scored)


def _is_scored(one: Question) -> bool:
    return hashlib.sha256(_plain(one.title).encode()).digest()[0] % 10 < SCORED_OF_TEN


def marks(one: Question) -> tuple[str, str, str]:
    """What two parts must not share: the question, the passage, the article."""
    return f"question {_plain(one.question)}", f"passage {_plain(one.passage)}", f"title {_plain(one.title)}"


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def document(one: Question) -> str:
    """A passage as it is stored and read."""
    return f"{one.title}\n{one.passage}\n\n"


def question(one: Question) -> list[dict[str, str]]:
    """The question as a user asks it."""
    return [{"role": "user", "content": ASKED.format(question=one.question.strip().removesuffix("?"))}]


def conversation(one: Question) -> list[dict[str, str]]:
    """The question with the first of its answers."""
    return [*question(one), {"role": "assistant", "content": one.answers[0]}]
