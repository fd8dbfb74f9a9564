"""Whole examples, read back from their tokens: what they say is what was chosen, and all choices are equally likely."""

from collections import Counter
from dataclasses import fields
from itertools import permutations, product
from typing import Any

import pytest
import torch

from contentrope.errors import InputError
from experiments.facts.generator.sampler import Drawn, Sampler
from experiments.facts.generator.sentences import PADDING, Layout
from experiments.facts.generator.words import TEMPLATES
from experiments.facts.generator.world import RELATIONS, Kind, World
from tests.experiments.facts.generator.chances import assert_equally_likely, assert_likely
from tests.experiments.facts.generator.parsing import Fact, examples, names_of, roles_of, true_facts

LAYOUTS = ("end", "apart", "bar")
SETTINGS: list[dict[str, Any]] = [
    {},
    {"kind": "chain2"},
    {"kind": "chain3", "names": "test"},
    {"condition": "same entities"},
    {"condition": "same relation", "names": "test", "distractors": (0, 5)},
    {"condition": "mixed", "distractors": (0, 7)},
]


def rendered(layout: Layout, facts: list[str], text: str) -> str:
    if layout == "bar":
        return "".join(f"{fact}|" for fact in facts) + f" {text}"
    return "".join(f"{fact};" for fact in facts) + f"| {text}"


def sentence(fact: Fact, task: int, template: int) -> str:
    order = list(permutations(range(len(fact))))[task]
    stated = zip(("given", "first", "second"), (fact[i] for i in order), strict=False)
    slots = {key: value for slot, (role, name) in stated for key, value in ((slot, name), (f"{slot}_role", role))}
    return TEMPLATES[len(fact)][template].format(**slots)


@pytest.mark.parametrize(("layout", "settings"), list(product(LAYOUTS, SETTINGS)), ids=str)
def test_examples_say_what_was_chosen(layout: Layout, settings: dict[str, Any], small_world: World) -> None:
    sampler = Sampler(small_world, layout)
    drawn = sampler.draw(150, torch.Generator().manual_seed(1), **settings)
    true = true_facts(getattr(small_world, settings.get("names", "train")))
    for row, example in enumerate(examples(sampler, drawn)):
        asked = example.facts[int(drawn.place[row])]
        assert asked == example.asked
        assert asked in true
        assert roles_of(asked) == RELATIONS[int(drawn.relation[row])].roles
        assert len(example.facts) == int(drawn.facts[row])
        assert example.scored == [example.slots[slot] for slot in ("first", "second")[: len(asked) - 1]]
        written = [
            " ".join(f"<{fact[i][0]}> {fact[i][1]}" for i in order)
            for fact, order in zip(example.facts, example.orders, strict=True)
        ]
        text = sentence(asked, example.task, example.template)
        assert sampler.vocabulary.decode(drawn.ids[row]) == rendered(layout, written, text)
        start = int(drawn.text_start[row])
        assert sampler.vocabulary.decode(drawn.ids[row, start:]) == rendered(layout, [], text)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_padding_fills_the_rest_and_nothing_else(settings: dict[str, Any], sampler: Sampler) -> None:
    drawn = sampler.draw(200, torch.Generator().manual_seed(2), **settings)
    inside = torch.arange(drawn.ids.shape[1]) < drawn.lengths.unsqueeze(1)
    assert torch.equal(drawn.ids != PADDING, inside)
    assert not (drawn.scored & ~inside).any()


@pytest.mark.parametrize(("kind", "layout"), list(product(["any", "chain2", "chain3"], LAYOUTS)))
def test_the_width_is_that_of_the_longest_example(kind: Kind, layout: Layout, small_world: World) -> None:
    sampler = Sampler(small_world, layout)
    lengths = []
    for relation, size in ((r, len(r.roles)) for r in RELATIONS if kind in ("any", f"chain{len(r.roles)}")):
        fact = tuple((role, "x" * 8) for role in relation.roles)
        serialized = " ".join(f"<{role}> {name}" for role, name in fact)
        for template in range(len(TEMPLATES[size])):
            text = rendered(layout, [serialized] * 3, sentence(fact, 0, template))
            lengths.append(len(sampler.vocabulary.encode(text)))
    assert sampler.width(kind, 3) == max(lengths)


def test_shapes_depend_on_the_settings_alone(sampler: Sampler, generator: torch.Generator) -> None:
    for settings, facts in (({}, 1), ({"condition": "mixed", "distractors": (0, 3)}, 4)):
        widths = {sampler.draw(2, generator, **settings).ids.shape for _ in range(5)}  # type: ignore[arg-type]
        assert widths == {(2, sampler.width("any", facts))}
    assert sampler.draw(2, generator, width=500).ids.shape == (2, 500)


# --- chances ---------------------------------------------------------------------------------------------------------


def test_facts_are_equally_likely(sampler: Sampler, generator: torch.Generator) -> None:
    drawn = sampler.draw(6_000, generator, names="test")
    true = true_facts(sampler.world.test)
    assert_equally_likely(Counter(example.asked for example in examples(sampler, drawn)), list(true))


def test_pairs_and_triples_by_their_numbers(paper_world: World, generator: torch.Generator) -> None:
    drawn = Sampler(paper_world).draw(50_000, generator)
    found = Counter((drawn.relation < 25).tolist())
    assert_likely(found, {True: 74_975 / 134_935, False: 59_960 / 134_935})
    assert_equally_likely(Counter(drawn.relation[drawn.relation < 25].tolist()), range(25))


@pytest.mark.parametrize(("kind", "size"), [("chain2", 2), ("chain3", 3)])
def test_templates_tasks_and_entity_orders(kind: Kind, size: int, sampler: Sampler, generator: torch.Generator) -> None:
    found = examples(sampler, sampler.draw(4_000, generator, kind=kind))
    orders = list(permutations(range(size)))
    outcomes = list(product(range(12), range(len(orders)), orders))
    assert_equally_likely(Counter((e.template, e.task, e.orders[0]) for e in found), outcomes)


def test_the_place_of_the_asked_fact_and_the_number_of_facts(sampler: Sampler, generator: torch.Generator) -> None:
    drawn = sampler.draw(20_000, generator, condition="mixed", distractors=(1, 4))
    assert_equally_likely(Counter(drawn.facts.tolist()), [2, 3, 4, 5])
    places = Counter(zip(drawn.facts.tolist(), drawn.place.tolist(), strict=True))
    assert_likely(places, {(facts, place): 1 / 4 / facts for facts in (2, 3, 4, 5) for place in range(facts)})


# --- the same again --------------------------------------------------------------------------------------------------


def tensors(drawn: Drawn) -> list[torch.Tensor]:
    return [getattr(drawn, field.name) for field in fields(drawn)]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_generator_decides_and_nothing_else(settings: dict[str, Any], sampler: Sampler) -> None:
    def draw(seed: int) -> Drawn:
        return sampler.draw(20, torch.Generator().manual_seed(seed), **settings)

    first = draw(5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(123)
        state, second = torch.get_rng_state(), draw(5)
        assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, tensors(first), tensors(second)))
    assert not torch.equal(first.ids, draw(6).ids)


def test_layouts_say_the_same(small_world: World) -> None:
    samplers = [Sampler(small_world, layout) for layout in LAYOUTS]  # type: ignore[arg-type]
    drawn = [s.draw(20, torch.Generator().manual_seed(5), condition="mixed", distractors=(0, 4)) for s in samplers]
    said = [examples(s, d) for s, d in zip(samplers, drawn, strict=True)]
    assert said[0] == said[1] == said[2]
    assert torch.equal(drawn[0].ids, drawn[1].ids)
    assert not torch.equal(drawn[0].ids, drawn[2].ids[:, : drawn[0].ids.shape[1]])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_permuted_facts(layout: Layout, small_world: World, generator: torch.Generator) -> None:
    sampler = Sampler(small_world, layout)
    drawn = sampler.draw(1_000, generator, condition="mixed", distractors=(0, 3))
    other = sampler.permuted(drawn, generator)
    text = torch.arange(drawn.ids.shape[1]) >= drawn.text_start.unsqueeze(1)
    assert torch.equal(drawn.ids[text], other.ids[text])
    orders: Counter[tuple[int, ...]] = Counter()
    for row, (before, after) in enumerate(zip(examples(sampler, drawn), examples(sampler, other), strict=True)):
        pairs, moved = (list(zip(e.facts, e.orders, strict=True)) for e in (before, after))
        assert Counter(pairs) == Counter(moved)
        assert after.facts[int(other.place[row])] == before.asked
        if len(set(pairs)) == 4:
            orders[tuple(map(pairs.index, moved))] += 1
    assert_equally_likely(orders, list(permutations(range(4))))
    for field in ("lengths", "scored", "text_start", "facts", "relation"):
        assert torch.equal(getattr(drawn, field), getattr(other, field))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_every_device_sees_the_same(settings: dict[str, Any], small_world: World) -> None:
    here, there = Sampler(small_world), Sampler(small_world, device="cuda")
    first, second = (s.draw(50, torch.Generator().manual_seed(5), **settings) for s in (here, there))
    assert second.ids.is_cuda
    assert all(torch.equal(x, y.cpu()) for x, y in zip(tensors(first), tensors(second), strict=True))
    first, second = (s.permuted(d, torch.Generator().manual_seed(5)) for s, d in ((here, first), (there, second)))
    assert all(torch.equal(x, y.cpu()) for x, y in zip(tensors(first), tensors(second), strict=True))


def test_names_stay_in_their_set(paper_world: World, generator: torch.Generator) -> None:
    sampler = Sampler(paper_world)
    for names in ("train", "test"):
        drawn = sampler.draw(100, generator, names=names, condition="mixed", distractors=3)  # type: ignore[arg-type]
        seen = {name for e in examples(sampler, drawn) for fact in e.facts for name in names_of(fact)}
        assert seen <= set(getattr(paper_world, names).names)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": 0}, "rows must be an integer of at least 1, got 0"),
        ({"names": "both"}, "names must be one of 'train', 'test'; got 'both'"),
        ({"kind": "chain4"}, "kind must be one of 'any', 'chain2', 'chain3'; got 'chain4'"),
        ({"width": 20}, "width 20 is too small: the longest example has 136 tokens; ask for that or more"),
        ({"width": 200.5}, "width must be an integer of at least 1, got 200.5"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], message: str, sampler: Sampler, generator: torch.Generator) -> None:
    with pytest.raises(InputError, match=message):
        sampler.draw(**{"rows": 1, "generator": generator, **settings})


def test_no_facts_have_no_width(sampler: Sampler) -> None:
    with pytest.raises(InputError, match="max_facts must be an integer of at least 1, got 0"):
        sampler.width("any", 0)


def test_a_generator_elsewhere_is_refused(sampler: Sampler) -> None:
    with pytest.raises(InputError, match="the generator is on meta; make it"):
        sampler.draw(1, Elsewhere())  # type: ignore[arg-type]


class Elsewhere:
    device = torch.device("meta")
