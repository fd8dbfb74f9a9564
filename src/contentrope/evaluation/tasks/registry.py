"""Tasks by name, the groups of them, and the examples of a task."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from contentrope.corpora.long_context import LongContext
from contentrope.evaluation.tasks.example import Example

NEEDLES = (
    "niah_single_1",
    "niah_single_2",
    "niah_single_3",
    "niah_multikey_1",
    "niah_multikey_2",
    "niah_multikey_3",
    "niah_multivalue",
    "niah_multiquery",
)
GROUPS = {
    "needle": NEEDLES,
    "ruler": (*NEEDLES, "vt", "cwe", "fwe", "qa_1"),
    "babi": ("babi_1", "babi_2", "babi_4", "babi_5"),
}
"""Names that stand for several tasks."""


class Material(NamedTuple):
    """What examples are made of, beside what is drawn: the long-context texts, or a text of the user's."""

    data: LongContext | None
    text: str | None


def tasks_named(names: Iterable[str]) -> list[str]:
    """Every task that is named, by itself or in a group, once.

    >>> tasks_named(["kv", "babi", "babi_2"])
    ['kv', 'babi_1', 'babi_2', 'babi_4', 'babi_5']
    """
    raise NotImplementedError


def examples(
    task: str,
    tokenizer: Any,
    length: int,
    count: int,
    seed: int = 0,
    data: LongContext | None = None,
    *,
    text: str | None = None,
    chat: bool = False,
) -> list[Example]:
    """The first ``count`` examples of a task, each of ``length`` tokens or a few less, answer included.

    They depend on the task, the length, the seed, the tokenizer and the material alone; fewer are the first of more.
    Haystacks of prose are ``text``, else the validation books of ``data``. Questions, stories and the lists of
    ``kv_75`` need ``data``: pass :func:`contentrope.corpora.long_context.long_context`. ``chat``: lengths are counted
    with the tokenizer's chat template.
    """
    raise NotImplementedError
