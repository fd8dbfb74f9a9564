"""Examples read back from their text, and true facts listed, by plain Python: nothing here is shared with the sampler
but the names of roles and the templates, and in :func:`every_fact` its order."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby, permutations
from operator import itemgetter

import torch

from experiments.facts.generator.sampler import Drawn, Sampler
from experiments.facts.generator.words import DOMAINS, TEMPLATES
from experiments.facts.generator.world import RELATIONS, FactSet

Fact = tuple[tuple[str, str], ...]
"""Role and name of each entity, in the order of the roles."""

RANKS = {role: (domain, rank) for domain, roles in DOMAINS.items() for rank, role in enumerate(roles)}


@dataclass(frozen=True)
class Example:
    """What an example says. ``orders`` are the orders in which its facts name their entities."""

    facts: list[Fact]
    orders: list[tuple[int, ...]]
    template: int
    slots: dict[str, str]
    scored: list[str]

    @property
    def asked(self) -> Fact:
        """The fact that the text states."""
        stated = [(self.slots[f"{slot}_role"], self.slots[slot]) for slot in ("given", "first", "second")[: self.size]]
        return in_order(stated)

    @property
    def size(self) -> int:
        return len(self.slots) // 2

    @property
    def task(self) -> int:
        """Which of the orders of the entities, the given first."""
        stated = [self.slots[f"{slot}_role"] for slot in ("given", "first", "second")[: self.size]]
        ranks = [RANKS[role][1] for role in stated]
        return list(permutations(range(self.size))).index(tuple(rank - min(ranks) for rank in ranks))


def examples(sampler: Sampler, drawn: Drawn, rows: Iterable[int] | None = None) -> list[Example]:
    """All of them, or those in some rows."""
    every, scored = drawn.ids.tolist(), drawn.scored.tolist()
    return [example(sampler, every[row], scored[row]) for row in (range(len(every)) if rows is None else rows)]


def example(sampler: Sampler, ids: list[int], scored: list[bool]) -> Example:
    tokens = [(sampler.vocabulary.symbols[i], marked) for i, marked in zip(ids, scored, strict=True)]
    written = "".join(symbol for symbol, _ in tokens)
    *closed, text = written.split("|" if sampler.layout == "bar" else ";")
    start = " " if sampler.layout == "bar" else "| "
    assert text.startswith(start)
    parsed = [fact_of(fact) for fact in closed]
    template, slots = template_of(text.removeprefix(start))
    targets = ["".join(symbol for symbol, _ in run) for marked, run in groupby(tokens, itemgetter(1)) if marked]
    return Example([fact for fact, _ in parsed], [order for _, order in parsed], template, slots, targets)


def fact_of(text: str) -> tuple[Fact, tuple[int, ...]]:
    assert re.fullmatch(r"<[a-z-]+> [a-z]+( <[a-z-]+> [a-z]+){1,2}", text), text
    entities = re.findall(r"<([a-z-]+)> ([a-z]+)", text)
    fact = in_order(entities)
    return fact, tuple(fact.index(entity) for entity in entities)


def in_order(entities: list[tuple[str, str]]) -> Fact:
    """Sorted by rank; the roles must be neighbours in one domain."""
    fact = tuple(sorted(entities, key=lambda entity: RANKS[entity[0]]))
    (domain, lowest), *_ = (RANKS[role] for role, _ in fact)
    assert [RANKS[role] for role, _ in fact] == [(domain, lowest + place) for place in range(len(fact))]
    return fact


def template_of(text: str) -> tuple[int, dict[str, str]]:
    """The one template, of all, that the text fits, and what fills its slots."""
    fits = [(number, found.groupdict()) for number, pattern in PATTERNS if (found := pattern.fullmatch(text))]
    assert len(fits) == 1, (text, fits)
    return fits[0]


def pattern_of(template: str) -> re.Pattern[str]:
    roles = re.sub(r"\\{(\w+_role)\\}", rf"(?P<\1>{'|'.join(RANKS)})", re.escape(template))
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[a-z]+)", roles))


PATTERNS = [(number, pattern_of(template)) for texts in TEMPLATES.values() for number, template in enumerate(texts)]


def true_facts(world: FactSet) -> set[Fact]:
    facts = set()
    for (_, roles), chain in zip(DOMAINS.items(), world.chains.tolist(), strict=True):
        names = [world.names[i] for i in chain]
        for size in (2, 3):
            for lowest in range(6 - size + 1):
                for place in range(len(names) - size + 1):
                    facts.add(tuple(zip(roles[lowest : lowest + size], names[place : place + size], strict=True)))
    return facts


def every_fact(world: FactSet) -> list[Fact]:
    """In the order of their numbers, as the generator has them."""
    relation, place = world.located(torch.tensor(world.numbers("any")).unsqueeze(1))
    entities = world.facts(relation, place).entities[:, 0].tolist()
    roles = [RELATIONS[index].roles for index in relation[:, 0].tolist()]
    return [
        tuple((role, world.names[name]) for role, name in zip(*fact, strict=False))
        for fact in zip(roles, entities, strict=True)
    ]


def roles_of(fact: Fact) -> tuple[str, ...]:
    return tuple(role for role, _ in fact)


def names_of(fact: Fact) -> tuple[str, ...]:
    return tuple(name for _, name in fact)
