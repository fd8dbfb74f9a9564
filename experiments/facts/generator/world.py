"""Who follows whom: in every domain the names stand in a random order, and neighbours in it make the facts.

The names are the English first names of the package Faker, in lower case, of 2 to 8 letters. Faker is needed once: the
list is kept as ``names.txt`` in the cache folder (see :mod:`contentrope.corpora.shakespeare`) and read from there where
Faker is missing. Wherever it comes from, its SHA-256 must be :data:`SHA256`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass, field
from itertools import permutations
from math import factorial
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from contentrope.corpora.shakespeare import cache_folder
from contentrope.errors import InputError
from contentrope.files import write_whole
from experiments.experiment import require_integer
from experiments.facts.generator.words import DOMAINS, ROLES, TEMPLATES

Kind = Literal["any", "chain2", "chain3"]
"""Facts about two entities, about three, or both."""
FEWEST_NAMES = 8
"""With fewer, some fact would have no other of its relation without a name in common."""
ROLES_PER_DOMAIN = 6


class Relation(NamedTuple):
    """Neighbouring roles of a domain, the lowest first."""

    domain: str
    roles: tuple[str, ...]


RELATIONS = tuple(
    Relation(domain, roles[start : start + size])
    for size in (2, 3)
    for domain, roles in DOMAINS.items()
    for start in range(len(roles) - size + 1)
)
"""A relation's index is its place here: first all pairs of roles, then all triples."""
PAIRS = sum(len(relation.roles) == 2 for relation in RELATIONS)
SIZE = torch.tensor([len(relation.roles) for relation in RELATIONS])
DOMAIN = torch.tensor([list(DOMAINS).index(relation.domain) for relation in RELATIONS])
LOWEST = torch.tensor([ROLES.index(relation.roles[0]) for relation in RELATIONS])
"""By relation: how many roles it has, its domain, and its lowest role."""
ORDERS = (*permutations(range(2)), *permutations(range(3)))
"""The orders of two entities, then those of three. As a task: the given entity first, then the targets."""


def sizes_of(kind: Kind) -> tuple[int, ...]:
    """The numbers of entities that facts of this kind have."""
    require_choice("kind", kind, get_args(Kind))
    return (2, 3) if kind == "any" else (int(kind[-1]),)


class Facts(NamedTuple):
    """Several facts for each row, their entities by role, the lowest first. The third of a pair means nothing."""

    relation: Int[Tensor, "rows facts"]
    entities: Int[Tensor, "rows facts 3"]


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
        sizes = sizes_of(kind)
        pairs, triples = PAIRS * self.places(2), (len(RELATIONS) - PAIRS) * self.places(3)
        return range(0 if 2 in sizes else pairs, pairs + (triples if 3 in sizes else 0))

    def located(self, number: Int[Tensor, "*shape"]) -> tuple[Int[Tensor, "*shape"], Int[Tensor, "*shape"]]:
        """The relation of each fact, and its place in the chain of its domain."""
        ends = (len(self.names) + 1 - SIZE).cumsum(0)
        relation = torch.searchsorted(ends, number, right=True)
        return relation, number - (ends - len(self.names) - 1 + SIZE)[relation]

    def facts(self, relation: Int[Tensor, "rows facts"], place: Int[Tensor, "rows facts"]) -> Facts:
        places = (place.unsqueeze(-1) + torch.arange(3)).clamp(max=len(self.names) - 1)
        return Facts(relation, self.chains[DOMAIN[relation].unsqueeze(-1), places])

    def counts(self) -> dict[str, int]:
        pairs, triples = len(self.numbers("chain2")), len(self.numbers("chain3"))
        return {
            "names": len(self.names),
            "chain2 relations": PAIRS,
            "chain3 relations": len(RELATIONS) - PAIRS,
            "chain2 facts": pairs,
            "chain3 facts": triples,
            "facts": pairs + triples,
            "sentences": pairs * len(TEMPLATES[2]) * factorial(2) + triples * len(TEMPLATES[3]) * factorial(3),
        }


@dataclass(frozen=True, eq=False)
class World:
    """Names to train on, other names to test on, and the facts about each. All of it follows from the seed.

    Another number of test names leaves the training names, their facts and the first test names as they are.
    """

    seed: int = 0
    training_names: int = 3_000
    test_names: int = 100
    train: FactSet = field(init=False, repr=False)
    test: FactSet = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require_integer("seed", self.seed, 0)
        require_integer("training_names", self.training_names, FEWEST_NAMES)
        require_integer("test_names", self.test_names, FEWEST_NAMES)
        names, asked = first_names(), self.training_names + self.test_names
        if asked > len(names):
            raise InputError(
                f"training_names {self.training_names} and test_names {self.test_names} make {asked}, "
                f"but there are {len(names)} names; take fewer"
            )
        order = [names[i] for i in self._permutation(len(names), 0).tolist()]
        # From both ends, so that neither number moves the other's names.
        for part, own in enumerate((order[: self.training_names], order[::-1][: self.test_names])):
            chains = [self._permutation(len(own), part + 1, domain) for domain in range(len(DOMAINS))]
            object.__setattr__(self, ("train", "test")[part], FactSet(tuple(own), torch.stack(chains)))

    def _permutation(self, count: int, *purpose: int) -> Int[Tensor, "count"]:
        """From a generator of its own for every purpose, so that none depends on the size of another."""
        state = np.random.SeedSequence((self.seed, *purpose)).generate_state(1, np.uint64)
        return torch.randperm(count, generator=torch.Generator().manual_seed(int(state[0])))


# --- names ----------------------------------------------------------------------------------------------------------

FAKER = "40.54.0"
"""The version of Faker the checksum was taken with."""
SHA256 = "7228801b9c163990052a8dc580331ed62f4efb024dc63999ac091833a55831e1"
COUNT = 6_548
SHORTEST, LONGEST = 2, 8
INSTALL = "pip install contentrope[facts]"


def first_names() -> tuple[str, ...]:
    """All names, sorted."""
    try:
        from faker import VERSION
        from faker.providers.person.en import Provider
    except ImportError:
        return _cached_names()
    lowered = {name.lower() for name in Provider.first_names}
    # isalpha alone would let letters with accents pass.
    names = [name for name in lowered if name.isascii() and name.isalpha() and SHORTEST <= len(name) <= LONGEST]
    data = "\n".join(sorted(names)).encode("ascii")
    checked = _checked(data, f"Faker {VERSION}", f"pip install faker=={FAKER}")
    # Only a convenience: where there is Faker, a cache that cannot be written is no reason to stop.
    with contextlib.suppress(OSError, InputError):
        if not os.path.lexists(path := cache_folder() / "names.txt"):
            write_whole(path, data)
    return checked


def _cached_names() -> tuple[str, ...]:
    path = cache_folder() / "names.txt"
    if not os.path.lexists(path):
        raise InputError(f"the names come from Faker, which is not installed, and {path} is not there: {INSTALL}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error}); make it a readable file, or {INSTALL}") from error
    return _checked(data, str(path), f"delete it and {INSTALL}")


def _checked(data: bytes, origin: str, remedy: str) -> tuple[str, ...]:
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256:
        raise InputError(
            f"{origin} has other names: found {len(data.split())} with SHA-256 {found}, "
            f"expected the {COUNT} of Faker {FAKER} with SHA-256 {SHA256}; {remedy}"
        )
    return tuple(data.decode("ascii").split("\n"))


# --- what is refused -------------------------------------------------------------------------------------------------


def require_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}")
