"""Facts that stand beside the asked one.

=================  ==================================================================================================
condition          the others
=================  ==================================================================================================
``single``         none
``same entities``  the same names in the same order under other relations: those of the same domain first, then others
``same relation``  the same relation between others; no name of the asked fact
``mixed``          in half of the rows all of the same relation; in the others each with equal chance one of these
                   two, or any fact at all of the kind asked for
=================  ==================================================================================================

Except in ``mixed``, which takes any number and may repeat a distractor, those of a row differ from each other.
None is ever the asked fact.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Int
from torch import Tensor

from contentrope.errors import InputError
from contentrope.facts.draws import below, without_repetition
from contentrope.facts.relations import DOMAINS, Kind, chains_of, first_relation, require_choice, sizes_of
from contentrope.facts.world import FactSet

SAME_RELATION = 1
"""Its place among the sorts that are mixed."""
MIXTURE = "half of the rows of the same relation alone"
"""What ``mixed`` means, for the results: what was trained on another mixture is not comparable, nor to be continued."""
Condition = Literal["single", "same entities", "same relation", "mixed"]


class Facts(NamedTuple):
    """Several facts for each row."""

    relation: Int[Tensor, "rows facts"]
    entities: Int[Tensor, "rows facts 3"]


class Asked(NamedTuple):
    """The fact each row asks for."""

    number: Int[Tensor, "rows 1"]
    relation: Int[Tensor, "rows 1"]
    place: Int[Tensor, "rows 1"]
    facts: Facts


def asked_facts(world: FactSet, kind: Kind, rows: int, generator: torch.Generator) -> Asked:
    """Drawn uniformly from all facts of the kind."""
    numbers = world.numbers(kind)
    number = numbers.start + below(torch.full((rows, 1), len(numbers)), generator)
    relation, place = world.located(number)
    return Asked(number, relation, place, Facts(relation, world.entities(relation, place)))


def distractors(
    world: FactSet, asked: Asked, kind: Kind, condition: Condition, count: int, generator: torch.Generator
) -> Facts:
    if condition == "same entities":
        return _same_entities(asked, count, generator)
    if condition == "same relation":
        return _same_relation(world, asked, count, generator)
    if condition == "mixed":
        return _mixed(world, asked, kind, count, generator)
    return Facts(asked.relation[:, :0], asked.facts.entities[:, :0])


MOST_MIXED = 10_000
"""Facts may return among those of mixed kinds, so there is no end to them but that of memory."""


def most_distractors(world: FactSet, kind: Kind, condition: Condition) -> int:
    """How many every asked fact has."""
    require_choice("condition", condition, get_args(Condition))
    size = max(sizes_of(kind))  # triples have fewer of all
    per_domain = chains_of(first_relation(torch.tensor(size))).per_domain
    limits = {
        "single": 0,
        "same entities": int(per_domain) * len(DOMAINS) - 1,
        "same relation": world.places(size) - (2 * size - 1),  # neighbours in the chain share names
        "mixed": MOST_MIXED,
    }
    return limits[condition]


def require_distractors(world: FactSet, kind: Kind, condition: Condition, count: int) -> None:
    most = most_distractors(world, kind, condition)
    if count <= most:
        return
    if condition == "single":
        raise InputError(f"condition 'single' has no distractors, got {count}; choose another, or leave them out")
    remedy = "ask for fewer"
    if condition == "same relation":
        remedy += f", or take a World with more than {len(world.names)} names (test_names for the test set)"
    raise InputError(
        f"distractors must be at most {most} for condition {condition!r} and kind {kind!r}, got {count}; {remedy}"
    )


def _same_entities(asked: Asked, count: int, generator: torch.Generator) -> Facts:
    chains = chains_of(asked.relation)
    own = chains.per_domain - 1
    inside = without_repetition(own, count, generator)
    inside = chains.domain * chains.per_domain + inside + (inside >= chains.start).long()
    outside = without_repetition(chains.per_domain * (len(DOMAINS) - 1), count, generator)
    outside = outside + torch.where(outside // chains.per_domain >= chains.domain, chains.per_domain, 0)
    # The domain's own relations come first; where they end, the first of the others follow.
    column = torch.arange(count).expand_as(inside)
    within = torch.where(column < own, inside, outside.gather(1, (column - own).clamp(min=0)))
    return Facts(first_relation(chains.size) + within, asked.facts.entities.expand(-1, count, -1))


def _same_relation(world: FactSet, asked: Asked, count: int, generator: torch.Generator) -> Facts:
    first, shared = _sharing_names(world, asked)
    place = without_repetition(_places(world, asked) - shared, count, generator)
    place = place + torch.where(place >= first, shared, 0)
    relation = asked.relation.expand(-1, count)
    return Facts(relation, world.entities(relation, place))


def _mixed(world: FactSet, asked: Asked, kind: Kind, count: int, generator: torch.Generator) -> Facts:
    """A row with so many distractors of a condition has those it would have if they were all.

    Names must be told apart only among facts of one relation, and that is hard to learn: half of the rows are such.
    """
    chains = chains_of(asked.relation)
    pools = (chains.per_domain * len(DOMAINS) - 1, _places(world, asked) - _sharing_names(world, asked)[1])
    found = _any_fact(world, asked, kind, count, generator)
    choice = below(torch.full_like(found.relation, 3), generator)
    choice = torch.where(below(torch.full_like(asked.relation, 2), generator) == 1, SAME_RELATION, choice)
    drawn = (_same_entities(asked, count, generator), _same_relation(world, asked, count, generator))
    for index, (pool, facts) in enumerate(zip(pools, drawn, strict=True)):
        chosen = choice == index
        column = (chosen.cumsum(1) - 1).clamp(min=0) % pool  # from the beginning again where there are no more
        relation = torch.where(chosen, facts.relation.gather(1, column), found.relation)
        entities = facts.entities.gather(1, column.unsqueeze(-1).expand_as(facts.entities))
        found = Facts(relation, torch.where(chosen.unsqueeze(-1), entities, found.entities))
    return found


def _any_fact(world: FactSet, asked: Asked, kind: Kind, count: int, generator: torch.Generator) -> Facts:
    numbers = world.numbers(kind)
    number = numbers.start + below(torch.full((len(asked.number), count), len(numbers) - 1), generator)
    relation, place = world.located(number + (number >= asked.number).long())
    return Facts(relation, world.entities(relation, place))


def _places(world: FactSet, asked: Asked) -> Int[Tensor, "rows 1"]:
    """Facts of the asked relation."""
    return len(world.names) + 1 - chains_of(asked.relation).size


def _sharing_names(world: FactSet, asked: Asked) -> tuple[Int[Tensor, "rows 1"], Int[Tensor, "rows 1"]]:
    """Where the facts begin that have the asked relation and one of the asked names, and how many they are."""
    reach = chains_of(asked.relation).size - 1
    first = (asked.place - reach).clamp(min=0)
    last = torch.minimum(asked.place + reach, _places(world, asked) - 1)
    return first, last - first + 1
