"""All that is random about a batch of examples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from contentrope.facts.distractors import Condition, Facts, asked_facts, distractors
from contentrope.facts.draws import below, shuffled
from contentrope.facts.relations import TASKS, Kind, chains_of, first_order
from contentrope.facts.templates import PER_KIND
from contentrope.facts.world import FactSet


@dataclass(frozen=True, eq=False)
class Choices:
    """All that is random about a batch."""

    asked: Facts
    facts: Facts
    present: Bool[Tensor, "rows facts"]
    place: Int[Tensor, "rows"]
    entity_order: Int[Tensor, "rows facts"]
    task: Int[Tensor, "rows"]
    template: Int[Tensor, "rows"]


def choose(
    world: FactSet, rows: int, generator: torch.Generator, kind: Kind, condition: Condition, least: int, most: int
) -> Choices:
    asked = asked_facts(world, kind, rows, generator)
    others = distractors(world, asked, kind, condition, most, generator)
    count = least + below(torch.full((rows, 1), most - least + 1), generator)
    present = torch.arange(most + 1) <= count
    order = shuffled(present, generator)  # the asked fact is number 0
    relation = torch.cat((asked.relation, others.relation), dim=1).gather(1, order)
    entities = torch.cat((asked.facts.entities, others.entities), dim=1)
    facts = Facts(relation, entities.gather(1, order.unsqueeze(-1).expand_as(entities)))
    size = chains_of(relation).size
    return Choices(
        asked=asked.facts,
        facts=facts,
        present=present,
        place=place_of(torch.tensor(0), order),
        entity_order=first_order(size) + below(_tasks(size), generator),
        task=below(_tasks(chains_of(asked.relation[:, 0]).size), generator),
        template=below(torch.full((rows,), PER_KIND), generator),
    )


def _tasks(size: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """Orders of so many entities."""
    return torch.where(size == 2, TASKS[2], TASKS[3])


def place_of(fact: Int[Tensor, "*#row"], order: Int[Tensor, "rows facts"]) -> Int[Tensor, "rows"]:
    return (order == fact).int().argmax(1)
