"""Tasks by name, the groups of them, and the examples of a task."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from contentrope.corpora.long_context import BABI, LongContext
from contentrope.errors import InputError, quoted
from contentrope.evaluation.tasks.example import Case, Example, length_of
from contentrope.evaluation.tasks.fitting import Plan, fitted
from contentrope.evaluation.tasks.haystacks import Prose, prose_of
from contentrope.evaluation.tasks.lists import common_words, frequent_words, given_pairs, made_pairs, tracked_variables
from contentrope.evaluation.tasks.needles import needle_tasks
from contentrope.evaluation.tasks.questions import among_passages, in_prose

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
    "babi": tuple(f"babi_{number}" for number in BABI),
}
"""Names that stand for several tasks."""
TASKS = (*GROUPS["ruler"], "kv", "squad", *GROUPS["babi"])
"""All tasks; beside them ``kv_N``, with N keys."""


KEYS = 75
"""Keys in the lists of the long-context texts."""

Planner = Callable[[Case], Plan]


def tasks_named(names: Iterable[str]) -> list[str]:
    """Every task that is named, by itself or in a group, once.

    >>> tasks_named(["kv", "babi", "babi_2"])
    ['kv', 'babi_1', 'babi_2', 'babi_4', 'babi_5']
    """
    found = [task for name in names for task in GROUPS.get(name, (name,))]
    for task in found:
        if task not in TASKS and _keys_of(task) is None:
            raise InputError(
                f"there is no task {quoted(task)}; there are {', '.join(TASKS)}, kv_N for N keys, and the groups "
                f"{', '.join(GROUPS)}"
            )
    return list(dict.fromkeys(found))


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
    if task not in tasks_named([task]):
        raise InputError(f"{task!r} is a group of tasks; name one of {', '.join(GROUPS[task])}")
    if count < 1:
        raise InputError(f"count must be at least 1, got {count}")
    plan, size = _planner(task, data, text), partial(length_of, tokenizer, chat=chat)
    return [fitted(task, plan(Case(task, length, seed, index)), length, size) for index in range(count)]


def needs_data(task: str) -> bool:
    """Whether a task cannot be made from any text, but only from the long-context texts."""
    return task in ("qa_1", "squad", f"kv_{KEYS}") or task in GROUPS["babi"]


def needs_prose(task: str) -> bool:
    """Whether things are hidden in a text; in other tasks they are among their like, or among lines made here."""
    made = ("niah_single_1", "niah_multikey_2", "niah_multikey_3")
    return task in GROUPS["babi"] or (task in NEEDLES and task not in made)


def _planner(task: str, data: LongContext | None, text: str | None) -> Planner:
    if needs_data(task):
        if data is None:
            raise InputError(f"task {task} is made from the long-context texts; pass data=long_context()")
        return _planner_from(task, data, text)
    if task.startswith("kv"):
        return partial(made_pairs, count=_keys_of(task))
    own: dict[str, Planner] = {"vt": tracked_variables, "cwe": common_words, "fwe": frequent_words}
    return {**own, **needle_tasks(partial(_prose, task, data, text))}[task]


def _planner_from(task: str, data: LongContext, text: str | None) -> Planner:
    if task in GROUPS["babi"]:
        return partial(in_prose, prose=_prose(task, data, text), data=data, number=int(task.removeprefix("babi_")))
    if task == f"kv_{KEYS}":
        return partial(given_pairs, lists=data.key_values())
    return partial(among_passages, questions=data.squad(), most=0 if task == "squad" else None)


def _prose(task: str, data: LongContext | None, text: str | None) -> Prose:
    if text is None and data is None:
        raise InputError(f"task {task} hides things in prose: pass text=, or data=long_context() for its books")
    return prose_of("\n\n".join(data.books("validation").values()) if text is None and data else text or "")


def _keys_of(task: str) -> int | None:
    """
    >>> _keys_of("kv_1000"), _keys_of("kv"), _keys_of("kv_0")
    (1000, None, None)
    """
    found = re.fullmatch(r"kv_([1-9][0-9]{0,5})", task)
    return int(found[1]) if found else None
