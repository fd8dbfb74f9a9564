"""Examples by the batch: some facts, then a text that asks for one of them.

=================  ==================================================================================================
condition          the facts beside the asked one
=================  ==================================================================================================
``single``         none
``same entities``  the same names in the same order under other relations: those of the same domain first, then others
``same relation``  the same relation between others; no name of the asked fact
``mixed``          in half of the rows all of the same relation; in the others each with equal chance one of these
                   two, or any fact at all of the kind asked for
=================  ==================================================================================================

Except in ``mixed``, which takes any number and may repeat a distractor, those of a row differ from each other.
None is ever the asked fact. All is drawn on the CPU, from one generator: every device sees the same examples.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from contentrope.errors import InputError
from experiments.experiment import require_integer
from experiments.facts.generator.sentences import PIECES_PER_FACT, SIGNS, FactVocabulary, Layout, Writer
from experiments.facts.generator.words import DOMAINS, TEMPLATES
from experiments.facts.generator.world import (
    PAIRS,
    ROLES_PER_DOMAIN,
    SIZE,
    Facts,
    FactSet,
    Kind,
    World,
    require_choice,
    sizes_of,
)

Names = Literal["train", "test"]
Condition = Literal["single", "same entities", "same relation", "mixed"]
SAME_RELATION = 1
"""Its place among the sorts that are mixed."""
MIXTURE = "half of the rows of the same relation alone"
"""What ``mixed`` means, for the results: what was trained on another mixture is not comparable, nor to be continued."""
MOST_MIXED = 10_000
"""Facts may return among those of mixed kinds, so there is no end to them but that of memory."""
USUAL_DISTRACTORS = 4


@dataclass(frozen=True, eq=False)
class Drawn:
    """A batch of examples, padded at the end, and what was chosen for each."""

    ids: Int[Tensor, "rows tokens"]
    lengths: Int[Tensor, "rows"]
    scored: Bool[Tensor, "rows tokens"]
    """True at the characters of target names."""
    text_start: Int[Tensor, "rows"]
    """The column of the text's first token."""
    facts: Int[Tensor, "rows"]
    """How many there are."""
    place: Int[Tensor, "rows"]
    """Of the asked fact among them."""
    relation: Int[Tensor, "rows"]
    """The asked fact's, an index of RELATIONS."""
    pieces: Int[Tensor, "rows pieces"] = field(repr=False)
    """What the tokens were assembled from: an equal number of pieces for every fact, then those of the text."""


class Sampler:
    """Draws examples of a world, written in one layout, on one device."""

    def __init__(self, world: World, layout: Layout = "end", device: torch.device | str = "cpu") -> None:
        require_choice("layout", layout, get_args(Layout))
        self.world, self.layout, self.device = world, layout, torch.device(device)
        self.vocabulary = FactVocabulary()
        self._writer = Writer(world.train.names + world.test.names, layout, self.vocabulary)
        self._writer.table.freeze(self.device)

    @property
    def terminators(self) -> tuple[int, ...]:
        """The ids that end a unit."""
        return tuple(self.vocabulary.encode(SIGNS[self.layout][2]))

    @property
    def reader(self) -> tuple[int, ...]:
        """The ids before the first of which units are memory: the facts are, the text reads them."""
        if self.layout == "bar":
            raise InputError(
                "layout 'bar' has no reader marker: its | ends the first fact already; use 'end' or 'apart'"
            )
        return tuple(self.vocabulary.encode("|"))

    def width(self, kind: Kind, max_facts: int) -> int:
        """Tokens of the longest example there can be."""
        require_integer("max_facts", max_facts, 1)
        return self._writer.width(kind, max_facts)

    def draw(
        self,
        rows: int,
        generator: torch.Generator,
        *,
        names: Names = "train",
        kind: Kind = "any",
        condition: Condition = "single",
        distractors: int | tuple[int, int] | None = None,
        width: int | None = None,
    ) -> Drawn:
        """``rows`` examples; asked fact, template, task and the order of facts and entities are uniformly random.

        ``distractors`` is how many other facts each example has, or the least and the most, all numbers between them
        equally likely; left out, it is 4 (0 for ``single``). Every example is padded to the longest that these
        settings allow, so that shapes do not change from call to call, or to ``width``.
        """
        require_integer("rows", rows, 1)
        _require_on_cpu(generator)
        require_choice("names", names, get_args(Names))
        least, most = _range_of(distractors, condition)
        world, first_name = self.world.train, 0
        if names == "test":
            world, first_name = self.world.test, len(world.names)
        require_distractors(world, kind, condition, most)
        needed = self.width(kind, most + 1)
        width = needed if width is None else width
        require_integer("width", width, 1)
        if width < needed:
            raise InputError(
                f"width {width} is too small: the longest example has {needed} tokens; ask for that or more"
            )
        asked = asked_facts(world, kind, rows, generator)
        others = distractors_of(world, asked, kind, condition, most, generator)
        relation = torch.cat((asked.facts.relation, others.relation), dim=1)
        entities = torch.cat((asked.facts.entities, others.entities), dim=1) + first_name
        present = torch.arange(most + 1) <= least + below(torch.full((rows, 1), most - least + 1), generator)
        order = shuffled(present, generator)
        in_order = Facts(relation.gather(1, order), entities.gather(1, order.unsqueeze(-1).expand_as(entities)))
        facts = self._writer.facts(in_order, _entity_orders(in_order.relation, generator), present)
        task = _entity_orders(relation[:, :1], generator)
        template = below(torch.full((rows,), len(TEMPLATES[2])), generator)
        text, targets = self._writer.text(Facts(relation[:, :1], entities[:, :1]), task, template)
        pieces = torch.cat((facts, text), dim=1).to(self.device)
        marked = torch.cat((torch.zeros_like(facts, dtype=torch.bool), targets), dim=1).to(self.device)
        ids, lengths, scored = self._writer.table.assemble(pieces, marked, width)
        return Drawn(
            ids=ids,
            lengths=lengths,
            scored=scored,
            text_start=self._writer.table.lengths[pieces[:, : facts.shape[1]]].sum(1),
            facts=present.sum(1).to(self.device),
            place=(order == 0).int().argmax(1).to(self.device),  # the asked fact is number 0
            relation=relation[:, 0].to(self.device),
            pieces=pieces,
        )

    def permuted(self, drawn: Drawn, generator: torch.Generator) -> Drawn:
        """The same examples with the facts of each in another random order. The text keeps its columns."""
        _require_on_cpu(generator)
        in_facts = drawn.pieces.shape[1] - self._writer.slots.shape[1]
        places = torch.arange(in_facts // PIECES_PER_FACT)
        order = shuffled(places < drawn.facts.cpu().unsqueeze(1), generator).to(drawn.pieces.device)
        blocks = drawn.pieces[:, :in_facts].unflatten(1, (-1, PIECES_PER_FACT))
        blocks = blocks.gather(1, order.unsqueeze(-1).expand_as(blocks))
        pieces = torch.cat((blocks.flatten(1), drawn.pieces[:, in_facts:]), dim=1)
        ids = self._writer.table.assemble(pieces, torch.zeros_like(pieces, dtype=torch.bool), drawn.ids.shape[1])[0]
        place = (order == drawn.place.unsqueeze(1)).int().argmax(1)
        return replace(drawn, ids=ids, pieces=pieces, place=place)


def _entity_orders(relation: Int[Tensor, "rows facts"], generator: torch.Generator) -> Int[Tensor, "rows facts"]:
    """An index of ORDERS for each fact: of the two of pairs, or of the six of triples behind them."""
    size = SIZE[relation]
    return (size - 2) * 2 + below(torch.where(size == 2, 2, 6), generator)


def _range_of(distractors: int | tuple[int, int] | None, condition: Condition) -> tuple[int, int]:
    if distractors is None:
        distractors = 0 if condition == "single" else USUAL_DISTRACTORS
    numbers = distractors if isinstance(distractors, tuple) else (distractors, distractors)
    if len(numbers) != 2:
        raise InputError(f"distractors must be one number, or the least and the most; got {distractors!r}")
    for number in numbers:
        require_integer("distractors", number, 0)
    least, most = numbers
    if least > most:
        raise InputError(f"distractors must be the least and the most, got {least} and {most}; swap them")
    return least, most


def _require_on_cpu(generator: torch.Generator) -> None:
    if generator.device.type != "cpu":
        raise InputError(f"the generator is on {generator.device}; make it torch.Generator(), on the CPU")


# --- the facts of a row ---------------------------------------------------------------------------------------------


def most_distractors(world: FactSet, kind: Kind, condition: Condition) -> int:
    """How many every asked fact has."""
    require_choice("condition", condition, get_args(Condition))
    size = max(sizes_of(kind))  # triples have fewer of all
    limits = {
        "single": 0,
        "same entities": (ROLES_PER_DOMAIN + 1 - size) * len(DOMAINS) - 1,
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


class Asked(NamedTuple):
    """The fact each row asks for."""

    number: Int[Tensor, "rows 1"]
    place: Int[Tensor, "rows 1"]
    facts: Facts


def asked_facts(world: FactSet, kind: Kind, rows: int, generator: torch.Generator) -> Asked:
    """Drawn uniformly from all facts of the kind."""
    numbers = world.numbers(kind)
    number = numbers.start + below(torch.full((rows, 1), len(numbers)), generator)
    relation, place = world.located(number)
    return Asked(number, place, world.facts(relation, place))


def distractors_of(
    world: FactSet, asked: Asked, kind: Kind, condition: Condition, count: int, generator: torch.Generator
) -> Facts:
    if condition == "same entities":
        return _same_entities(asked.facts, count, generator)
    if condition == "same relation":
        return _same_relation(world, asked, count, generator)
    if condition == "mixed":
        return _mixed(world, asked, kind, count, generator)
    return Facts(asked.facts.relation[:, :0], asked.facts.entities[:, :0])


def _same_entities(asked: Facts, count: int, generator: torch.Generator) -> Facts:
    size = SIZE[asked.relation]
    first, per_domain = (size - 2) * PAIRS, ROLES_PER_DOMAIN + 1 - size
    own_domain = (asked.relation - first) // per_domain * per_domain  # counted from the first of this size
    within = without_repetition(per_domain - 1, count, generator) + own_domain
    within = within + (first + within >= asked.relation).long()
    beyond = without_repetition(per_domain * (len(DOMAINS) - 1), count, generator)
    beyond = beyond + torch.where(beyond >= own_domain, per_domain, 0)
    # The domain's own relations come first; where they end, the first of the others follow.
    column = torch.arange(count) - (per_domain - 1)
    chosen = torch.where(column < 0, within, beyond.gather(1, column.clamp(min=0)))
    return Facts(first + chosen, asked.entities.expand(-1, count, -1))


def _same_relation(world: FactSet, asked: Asked, count: int, generator: torch.Generator) -> Facts:
    first, shared, others = _sharing_names(world, asked)
    place = without_repetition(others, count, generator)
    place = place + torch.where(place >= first, shared, 0)
    return world.facts(asked.facts.relation.expand(-1, count), place)


def _mixed(world: FactSet, asked: Asked, kind: Kind, count: int, generator: torch.Generator) -> Facts:
    """A row with so many distractors of a condition has those it would have if they were all.

    Names must be told apart only among facts of one relation, and that is hard to learn: half of the rows are such.
    """
    relation = asked.facts.relation
    relations = (ROLES_PER_DOMAIN + 1 - SIZE[relation]) * len(DOMAINS)
    pools = relations - 1, _sharing_names(world, asked)[2]
    found = _any_fact(world, asked, kind, count, generator)
    choice = below(torch.full_like(found.relation, 3), generator)
    choice = torch.where(below(torch.full_like(relation, 2), generator) == 1, SAME_RELATION, choice)
    drawn = _same_entities(asked.facts, count, generator), _same_relation(world, asked, count, generator)
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
    return world.facts(*world.located(number + (number >= asked.number).long()))


def _sharing_names(world: FactSet, asked: Asked) -> tuple[Int[Tensor, "rows 1"], ...]:
    """Where the facts begin that share the relation and a name with the asked one; how many do, and how many do not."""
    reach = SIZE[asked.facts.relation] - 1
    places = len(world.names) - reach
    first = (asked.place - reach).clamp(min=0)
    shared = torch.minimum(asked.place + reach, places - 1) - first + 1
    return first, shared, places - shared


# --- random integers for many rows at once ---------------------------------------------------------------------------


def below(bound: Int[Tensor, "*shape"], generator: torch.Generator) -> Int[Tensor, "*shape"]:
    """For each bound an integer from 0 to the one before it, all equally likely."""
    drawn = (torch.rand(bound.shape, generator=generator, dtype=torch.float64) * bound).long()
    return torch.minimum(drawn, bound - 1)  # rounding could reach the bound


def without_repetition(
    pool: Int[Tensor, "rows 1"], count: int, generator: torch.Generator
) -> Int[Tensor, "rows {count}"]:
    """In each row, ``count`` different integers below its ``pool``, in random order.

    Where the pool is smaller, only the first ``pool`` columns mean anything.
    """
    left = (pool - torch.arange(count)).clamp(min=1)
    rank = below(left, generator)
    # Each is a rank among what the earlier ones left over; putting those back, the last first, makes it a number.
    for earlier in reversed(range(count - 1)):
        later = rank[:, earlier + 1 :]
        later += (later >= rank[:, earlier : earlier + 1]).long()
    return rank


def shuffled(present: Bool[Tensor, "rows places"], generator: torch.Generator) -> Int[Tensor, "rows places"]:
    """In each row a random order of the places that are present; the others follow."""
    keys = torch.rand(present.shape, generator=generator, dtype=torch.float64)
    return keys.masked_fill(~present, 2.0).argsort(dim=1)
