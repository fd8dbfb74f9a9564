"""Who follows whom: in every domain the names stand in a random order, and neighbours in it make the facts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from contentrope.errors import InputError
from contentrope.facts.names import first_names
from contentrope.facts.relations import (
    CHAIN2,
    CHAIN3,
    DOMAINS,
    LONGEST_CHAIN,
    RELATIONS,
    TASKS,
    Kind,
    chains_of,
    sizes_of,
)
from contentrope.facts.templates import TEMPLATES

FEWEST_NAMES = 8
"""With fewer, some fact would have no other of its relation without a name in common."""
TRAINING_NAMES, TEST_NAMES = 3_000, 100

NAME_ORDER, TRAINING_CHAINS, TEST_CHAINS = range(3)
"""What is drawn from the seed; each has a generator of its own, so that none depends on the size of another."""


class Counts(NamedTuple):
    """How much there is of everything."""

    names: int
    chain2_relations: int
    chain3_relations: int
    chain2_facts: int
    chain3_facts: int
    facts: int
    sentences: int


PAPER = Counts(3_000, 25, 20, 74_975, 59_960, 134_935, 6_116_520)


@dataclass(frozen=True, eq=False)
class FactSet:
    """Some names and, for each domain, their order. A fact's number counts all pairs first, relation by relation."""

    names: tuple[str, ...]
    chains: Int[Tensor, "domains names"]

    def places(self, size: int) -> int:
        """Facts of one relation with so many roles."""
        return len(self.names) - size + 1

    def numbers(self, kind: Kind) -> range:
        """The numbers of all facts of a kind.

        >>> FactSet(tuple("abcdefgh"), torch.arange(8).expand(5, 8)).numbers("chain3")
        range(175, 295)
        """
        pairs = len(CHAIN2) * self.places(2)
        total = pairs + len(CHAIN3) * self.places(3)
        sizes_of(kind)  # refuses what is none
        return {"any": range(total), "chain2": range(pairs), "chain3": range(pairs, total)}[kind]

    def located(self, number: Int[Tensor, "*shape"]) -> tuple[Int[Tensor, "*shape"], Int[Tensor, "*shape"]]:
        """The relation of each fact, and its place in the chain of its domain."""
        among_triples = number - len(self.numbers("chain2"))
        is_pair = among_triples < 0
        relation = torch.where(is_pair, number // self.places(2), len(CHAIN2) + among_triples // self.places(3))
        return relation, torch.where(is_pair, number % self.places(2), among_triples % self.places(3))

    def entities(self, relation: Int[Tensor, "*#shape"], place: Int[Tensor, "*#shape"]) -> Int[Tensor, "*shape 3"]:
        """Who stands in the relation, the lowest role first. The third of a pair means nothing."""
        places = (place.unsqueeze(-1) + torch.arange(LONGEST_CHAIN)).clamp(max=len(self.names) - 1)
        return self.chains[chains_of(relation).domain.unsqueeze(-1), places]

    def every_fact(self) -> Iterator[dict[str, str]]:
        """All facts in the order of their numbers: the name by role."""
        relations, places = self.located(torch.tensor(self.numbers("any")))
        entities = self.entities(relations, places).tolist()
        for relation, names in zip(relations.tolist(), entities, strict=True):
            roles = RELATIONS[relation].roles
            yield {role: self.names[name] for role, name in zip(roles, names, strict=False)}

    def counts(self) -> Counts:
        pairs, triples = len(self.numbers("chain2")), len(self.numbers("chain3"))
        sentences = pairs * len(TEMPLATES[2]) * TASKS[2] + triples * len(TEMPLATES[3]) * TASKS[3]
        counts = Counts(len(self.names), len(CHAIN2), len(CHAIN3), pairs, triples, pairs + triples, sentences)
        assert counts.names != PAPER.names or counts == PAPER, f"{counts} should be the paper's {PAPER}"
        return counts


@dataclass(frozen=True, eq=False)
class World:
    """Names to train on, other names to test on, and the facts about each. All of it follows from the seed.

    Another number of test names leaves the training names, their facts and the first test names as they are.

    >>> World(seed=0).train.counts().sentences  # doctest: +SKIP
    6116520
    """

    seed: int = 0
    training_names: int = TRAINING_NAMES
    test_names: int = TEST_NAMES
    train: FactSet = field(init=False, repr=False)
    test: FactSet = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _require_integer("seed", self.seed, 0)
        for name in ("training_names", "test_names"):
            _require_integer(name, getattr(self, name), FEWEST_NAMES)
        names = first_names()
        if self.training_names + self.test_names > len(names):
            raise InputError(
                f"training_names {self.training_names} and test_names {self.test_names} make "
                f"{self.training_names + self.test_names}, but there are {len(names)} names; take fewer"
            )
        order = [names[i] for i in torch.randperm(len(names), generator=self._generator(NAME_ORDER)).tolist()]
        # From both ends, so that neither number moves the other's names.
        self._set("train", order[: self.training_names], TRAINING_CHAINS)
        self._set("test", order[::-1][: self.test_names], TEST_CHAINS)

    def _set(self, part: str, names: list[str], purpose: int) -> None:
        chains = [
            torch.randperm(len(names), generator=self._generator(purpose, domain)) for domain in range(len(DOMAINS))
        ]
        object.__setattr__(self, part, FactSet(tuple(names), torch.stack(chains)))

    def _generator(self, *purpose: int) -> torch.Generator:
        state = np.random.SeedSequence((self.seed, *purpose)).generate_state(1, np.uint64)
        return torch.Generator().manual_seed(int(state[0]))


def _require_integer(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} must be an integer of at least {least}, got {value!r}")
