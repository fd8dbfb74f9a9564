"""Who can stand in which relation: five domains of six ordered roles, and the chains of neighbouring roles in them."""

from __future__ import annotations

from itertools import permutations
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Int
from torch import Tensor

from contentrope.errors import InputError

Kind = Literal["any", "chain2", "chain3"]

DOMAINS = {
    "family": ("great-grandson", "grandson", "son", "father", "grandfather", "great-grandfather"),
    "work": ("intern", "assistant", "engineer", "manager", "director", "president"),
    "military": ("private", "corporal", "sergeant", "lieutenant", "captain", "general"),
    "school": ("pupil", "prefect", "tutor", "teacher", "principal", "inspector"),
    "church": ("acolyte", "deacon", "priest", "bishop", "archbishop", "cardinal"),
}
ROLES = tuple(role for roles in DOMAINS.values() for role in roles)
ROLES_PER_DOMAIN = 6
LONGEST_CHAIN = 3


class Relation(NamedTuple):
    """Neighbouring roles of a domain, the lowest first."""

    domain: str
    roles: tuple[str, ...]


def _relations(size: int) -> tuple[Relation, ...]:
    return tuple(
        Relation(domain, roles[start : start + size])
        for domain, roles in DOMAINS.items()
        for start in range(len(roles) - size + 1)
    )


CHAIN2, CHAIN3 = _relations(2), _relations(3)
RELATIONS = CHAIN2 + CHAIN3
"""A relation's index is its place here: first all pairs of roles, then all triples."""

ORDERS = (*permutations(range(2)), *permutations(range(3)))
"""The orders of two entities, then those of three. As a task: the given entity first, then the targets."""
TASKS = {2: 2, 3: 6}


class Chains(NamedTuple):
    """What the arithmetic on relation indices needs to know, one number per relation asked about."""

    size: Int[Tensor, "*shape"]
    domain: Int[Tensor, "*shape"]
    start: Int[Tensor, "*shape"]
    """The lowest role's place in its domain."""
    per_domain: Int[Tensor, "*shape"]
    """Relations of this size in one domain."""


def chains_of(relation: Int[Tensor, "*shape"]) -> Chains:
    """Take relation indices apart.

    >>> chains_of(torch.tensor([0, 6, 25, 44])).size.tolist()
    [2, 2, 3, 3]
    """
    size = 2 + (relation >= len(CHAIN2)).long()
    per_domain = ROLES_PER_DOMAIN - size + 1
    within = relation - first_relation(size)
    return Chains(size, within // per_domain, within % per_domain, per_domain)


def first_relation(size: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """The index of the first relation with so many roles."""
    return (size - 2) * len(CHAIN2)


def first_order(size: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """The index in :data:`ORDERS` of the first order of so many entities."""
    return (size - 2) * TASKS[2]


def order_table() -> Int[Tensor, "orders 3"]:
    """:data:`ORDERS`; a pair has a third place that is empty."""
    return torch.tensor([(*order, 2)[:LONGEST_CHAIN] for order in ORDERS])


def sizes_of(kind: Kind) -> tuple[int, ...]:
    """The numbers of entities that facts of this kind have.

    >>> sizes_of("any")
    (2, 3)
    """
    require_choice("kind", kind, get_args(Kind))
    return (2, 3) if kind == "any" else (int(kind[-1]),)


def require_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}")
