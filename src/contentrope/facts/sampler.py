"""Examples by the batch: some facts, then a text that asks for one of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from contentrope.errors import InputError
from contentrope.facts import layouts
from contentrope.facts.choices import Choices, choose, place_of
from contentrope.facts.distractors import Condition, Facts, require_distractors
from contentrope.facts.draws import shuffled
from contentrope.facts.layouts import Layout
from contentrope.facts.relations import Kind, chains_of, first_order, require_choice
from contentrope.facts.sentences import PIECES_PER_FACT, Writer
from contentrope.facts.vocabulary import FactVocabulary
from contentrope.facts.world import World

Names = Literal["train", "test"]
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
    task: Int[Tensor, "rows"]
    """0 or 1 for a pair, 0 to 5 for a triple: which of ORDERS, of that many entities, is asked."""
    template: Int[Tensor, "rows"]
    """0 to 11, an index of the templates of that many entities."""
    pieces: Int[Tensor, "rows pieces"] = field(repr=False)
    """What the tokens were assembled from: an equal number of pieces for every fact, then those of the text."""
    targets: Bool[Tensor, "rows pieces"] = field(repr=False)


class Sampler:
    """Draws examples of a world, written in one layout, on one device.

    The choices are made on the CPU, so the same generator state gives the same examples on every device.

    >>> sampler = Sampler(World(seed=0))  # doctest: +SKIP
    >>> drawn = sampler.draw(1, torch.Generator().manual_seed(0), kind="chain2")  # doctest: +SKIP
    >>> sampler.vocabulary.decode(drawn.ids[0])  # doctest: +SKIP
    '<cardinal> christen <archbishop> henery;| the cardinal christen knows the archbishop henery.'
    """

    def __init__(self, world: World, layout: Layout = "end", device: torch.device | str = "cpu") -> None:
        layouts.require_layout(layout)
        self.world, self.layout, self.device = world, layout, torch.device(device)
        self.vocabulary = FactVocabulary()
        self._writer = Writer(world.train.names + world.test.names, layout, self.vocabulary)
        self._writer.table.freeze(self.device)

    @property
    def terminators(self) -> tuple[int, ...]:
        """The ids that end a unit."""
        return layouts.terminators(self.layout, self.vocabulary)

    @property
    def reader(self) -> tuple[int, ...]:
        """The marker ids that make memory units of the facts; layout ``bar`` has none and refuses."""
        return layouts.reader(self.layout, self.vocabulary)

    def width(self, kind: Kind, max_facts: int) -> int:
        """Tokens of the longest example there can be."""
        _require_count("max_facts", max_facts, 1)
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
        _require_count("rows", rows, 1)
        _require_on_cpu(generator)
        require_choice("names", names, get_args(Names))
        least, most = _range_of(distractors, condition)
        facts = self.world.train if names == "train" else self.world.test
        require_distractors(facts, kind, condition, most)
        width = self._checked_width(width, self.width(kind, most + 1))
        chosen = choose(facts, rows, generator, kind, condition, least, most)
        return self._written(chosen, 0 if names == "train" else len(self.world.train.names), width)

    def permuted(self, drawn: Drawn, generator: torch.Generator) -> Drawn:
        """The same examples with the facts of each in another random order. The text keeps its columns."""
        _require_on_cpu(generator)
        rows, device = len(drawn.ids), drawn.pieces.device
        in_facts = drawn.pieces.shape[1] - self._writer.text_pieces
        places = torch.arange(in_facts // PIECES_PER_FACT)
        order = shuffled(places < drawn.facts.cpu().unsqueeze(1), generator).to(device)
        blocks = drawn.pieces[:, :in_facts].view(rows, -1, PIECES_PER_FACT)
        blocks = blocks.gather(1, order.unsqueeze(-1).expand_as(blocks))
        pieces = torch.cat((blocks.flatten(1), drawn.pieces[:, in_facts:]), dim=1)
        ids = self._writer.table.assemble(pieces, drawn.targets, drawn.ids.shape[1]).ids
        return replace(drawn, ids=ids, pieces=pieces, place=place_of(drawn.place.unsqueeze(1), order))

    def _written(self, chosen: Choices, first_name: int, width: int) -> Drawn:
        writer, asked = self._writer, chosen.asked
        facts = writer.facts(_renamed(chosen.facts, first_name), chosen.entity_order, chosen.present)
        task = chosen.task + first_order(chains_of(asked.relation[:, 0]).size)
        text, targets = writer.text(_renamed(asked, first_name), task, chosen.template)
        pieces = torch.cat((facts, text), dim=1).to(self.device)
        marked = torch.cat((torch.zeros_like(facts, dtype=torch.bool), targets), dim=1).to(self.device)
        ids, lengths, scored = writer.table.assemble(pieces, marked, width)
        return Drawn(
            ids=ids,
            lengths=lengths,
            scored=scored,
            text_start=writer.table.lengths[pieces[:, : facts.shape[1]]].sum(1),
            facts=chosen.present.sum(1).to(self.device),
            place=chosen.place.to(self.device),
            relation=asked.relation[:, 0].to(self.device),
            task=chosen.task.to(self.device),
            template=chosen.template.to(self.device),
            pieces=pieces,
            targets=marked,
        )

    def _checked_width(self, width: int | None, needed: int) -> int:
        if width is None:
            return needed
        _require_count("width", width, 1)
        if width < needed:
            raise InputError(
                f"width {width} is too small: the longest example has {needed} tokens; ask for that or more"
            )
        return width


def _renamed(facts: Facts, first_name: int) -> Facts:
    """Entities as numbers among the names of training and test together."""
    return facts._replace(entities=facts.entities + first_name)


def _range_of(distractors: int | tuple[int, int] | None, condition: Condition) -> tuple[int, int]:
    if distractors is None:
        distractors = 0 if condition == "single" else USUAL_DISTRACTORS
    numbers = distractors if isinstance(distractors, tuple) else (distractors, distractors)
    if len(numbers) != 2:
        raise InputError(f"distractors must be one number, or the least and the most; got {distractors!r}")
    for number in numbers:
        _require_count("distractors", number, 0)
    least, most = numbers
    if least > most:
        raise InputError(f"distractors must be the least and the most, got {least} and {most}; swap them")
    return least, most


def _require_count(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} must be an integer of at least {least}, got {value!r}")


def _require_on_cpu(generator: torch.Generator) -> None:
    if generator.device.type != "cpu":
        raise InputError(f"the generator is on {generator.device}; make it torch.Generator(), on the CPU")
