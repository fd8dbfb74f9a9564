"""Which pieces an example has: those of its facts, then those of its text."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from contentrope.facts import layouts
from contentrope.facts.distractors import Facts
from contentrope.facts.layouts import Layout
from contentrope.facts.names import LONGEST
from contentrope.facts.pieces import EMPTY, PieceTable
from contentrope.facts.relations import (
    LONGEST_CHAIN,
    RELATIONS,
    ROLES,
    ROLES_PER_DOMAIN,
    Kind,
    chains_of,
    order_table,
    sizes_of,
)
from contentrope.facts.templates import PER_KIND, SLOTS, TARGETS, TEMPLATES, Part, literal_length, parts_of
from contentrope.facts.vocabulary import FactVocabulary, marker

PIECES_PER_FACT = 2 * LONGEST_CHAIN + 1
"""A marker and a name for each entity, then what closes the fact."""


class Writer:
    """The pieces of a layout and some names, and how facts and sentences are put together from them."""

    def __init__(self, names: tuple[str, ...], layout: Layout, vocabulary: FactVocabulary) -> None:
        self.layout = layout
        self.table = PieceTable(vocabulary.encode)
        self.first_marker = self.table.add([f"{marker(role)} " for role in ROLES])
        self.later_marker = self.table.add([f" {marker(role)} " for role in ROLES])
        self.role = self.table.add(ROLES)
        self.fact_end = self.table.add([layouts.fact_end(layout)])
        self.text_start = self.table.add([layouts.text_start(layout)])
        self.name = self.table.add(names)
        self.orders = order_table()
        self._add_templates()
        self.text_pieces = self.slots.shape[1]

    def facts(
        self, facts: Facts, order: Int[Tensor, "rows facts"], present: Bool[Tensor, "rows facts"]
    ) -> Int[Tensor, "rows pieces"]:
        """Every fact with its entities in this order (an index of ORDERS); empty where none is present."""
        chains = chains_of(facts.relation)
        entity = self.orders[order]
        roles = self._roles(facts.relation).gather(2, entity)
        markers = roles + torch.tensor([self.first_marker, self.later_marker, self.later_marker])
        names = self.name + facts.entities.gather(2, entity)
        exists = torch.arange(LONGEST_CHAIN) < chains.size.unsqueeze(-1)
        pairs = torch.stack((markers, names), dim=-1).where(exists.unsqueeze(-1), EMPTY).flatten(2)
        closed = torch.cat((pairs, torch.full_like(pairs[..., :1], self.fact_end)), dim=-1)
        return closed.where(present.unsqueeze(-1), EMPTY).flatten(1)

    def text(
        self, asked: Facts, order: Int[Tensor, "rows"], template: Int[Tensor, "rows"]
    ) -> tuple[Int[Tensor, "rows pieces"], Bool[Tensor, "rows pieces"]]:
        """The text that asks for each fact, and which of its pieces are target names."""
        entity = self.orders[order].unsqueeze(1)
        names = self.name + asked.entities.gather(2, entity)
        roles = self.role + self._roles(asked.relation).gather(2, entity)
        # In the order of SLOTS: each entity's name, then its role.
        values = torch.stack((names, roles), dim=-1).flatten(1)
        row = template + PER_KIND * (chains_of(asked.relation[:, 0]).size - 2)
        slots = self.slots[row]
        pieces = torch.where(slots < 0, self.literals[row], values.gather(1, slots.clamp(min=0)))
        return pieces, self.targets[row]

    def width(self, kind: Kind, facts: int) -> int:
        """Tokens of the longest example with so many facts."""
        sizes = sizes_of(kind)
        fact = max(size * (len("m ") + LONGEST) + size for size in sizes)
        return facts * fact + max(self._longest_text(size) for size in sizes)

    def _longest_text(self, size: int) -> int:
        literal = max(map(literal_length, TEMPLATES[size]))
        roles = max(sum(map(len, relation.roles)) for relation in RELATIONS if len(relation.roles) == size)
        return len(layouts.text_start(self.layout)) + literal + roles + size * LONGEST

    def _roles(self, relation: Int[Tensor, "rows facts"]) -> Int[Tensor, "rows facts 3"]:
        """The indices of a relation's roles; a pair's third is one too many."""
        chains = chains_of(relation)
        lowest = chains.domain * ROLES_PER_DOMAIN + chains.start
        return (lowest.unsqueeze(-1) + torch.arange(LONGEST_CHAIN)).clamp(max=len(ROLES) - 1)

    def _add_templates(self) -> None:
        """One row for each template: a slot's index in SLOTS or -1, and the literal piece where it is -1."""
        rows = [parts_of(template) for size in (2, 3) for template in TEMPLATES[size]]
        longest = max(map(len, rows))
        slots, literals = [], []
        for parts in rows:
            spare = longest - len(parts)
            slots.append([-1, *(SLOTS.index(part.text) if part.is_slot else -1 for part in parts), *[-1] * spare])
            literals.append([self.text_start, *map(self._literal, parts), *[EMPTY] * spare])
        self.slots, self.literals = torch.tensor(slots), torch.tensor(literals)
        self.targets = torch.isin(self.slots, torch.tensor([SLOTS.index(target) for target in TARGETS]))

    def _literal(self, part: Part) -> int:
        return EMPTY if part.is_slot else self.table.add([part.text])
