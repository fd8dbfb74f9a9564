"""The paper's counts, facts that follow from the seed alone, and names that are never in both sets."""

from string import Formatter
from typing import Any

import pytest
import torch

from contentrope.errors import InputError
from experiments.facts.generator.words import DOMAINS, ROLES, SLOTS, TEMPLATES
from experiments.facts.generator.world import ORDERS, RELATIONS, World
from tests.experiments.facts.generator.parsing import every_fact, true_facts


def test_the_counts_of_the_paper(paper_world: World) -> None:
    counts = tuple(paper_world.train.counts().values())
    assert counts == (3_000, 25, 20, 74_975, 59_960, 134_935, 6_116_520)
    assert tuple(paper_world.test.counts().values()) == (100, 25, 20, 2_475, 1_960, 4_435, 200_520)


def test_the_facts_are_as_many_as_counted(paper_world: World) -> None:
    assert len(true_facts(paper_world.train)) == 134_935
    assert len(true_facts(paper_world.test)) == 4_435


def test_every_fact_once_in_the_order_of_their_numbers(small_world: World) -> None:
    facts = every_fact(small_world.train)
    assert set(facts) == true_facts(small_world.train)
    assert len(facts) == small_world.train.counts()["facts"]
    for kind, size in (("chain2", 2), ("chain3", 3)):
        numbers = small_world.train.numbers(kind)  # type: ignore[arg-type]
        assert all(len(facts[number]) == size for number in numbers)


def test_sentences_are_templates_times_tasks(small_world: World) -> None:
    tasks = {size: sum(len(order) == size for order in ORDERS) for size in (2, 3)}
    sentences = sum(len(TEMPLATES[len(fact)]) * tasks[len(fact)] for fact in every_fact(small_world.test))
    assert sentences == small_world.test.counts()["sentences"]


def test_roles_and_relations() -> None:
    assert list(DOMAINS) == ["family", "work", "military", "school", "church"]
    assert [len(roles) for roles in DOMAINS.values()] == [6] * 5
    assert len(set(ROLES)) == 30
    assert len(set(RELATIONS)) == 45
    assert all("".join(relation.roles) in "".join(DOMAINS[relation.domain]) for relation in RELATIONS)


@pytest.mark.parametrize("size", [2, 3])
def test_templates_name_what_is_given_first_and_roles_before_targets(size: int) -> None:
    assert len(set(TEMPLATES[size])) == 12
    for template in TEMPLATES[size]:
        literals, slots, *_ = zip(*Formatter().parse(template), strict=True)
        assert sorted(filter(None, slots)) == sorted(SLOTS[: 2 * size])
        assert set(slots[:2]) == {"given", "given_role"}
        assert [slot for slot in slots if slot][2:] == ["first_role", "first", "second_role", "second"][: 2 * size - 2]
        assert len("".join(literals)) <= 60
        assert set("".join(literals)) <= set("abcdefghijklmnopqrstuvwxyz ,.")


def test_no_name_is_in_both_sets(paper_world: World) -> None:
    train, test = paper_world.train.names, paper_world.test.names
    assert (len(set(train)), len(set(test))) == (3_000, 100)
    assert not set(train) & set(test)


def test_every_domain_has_an_order_of_its_own(paper_world: World) -> None:
    for names in (paper_world.train, paper_world.test):
        assert all(sorted(chain) == list(range(len(names.names))) for chain in names.chains.tolist())
        assert len({tuple(chain) for chain in names.chains.tolist()}) == 5


def test_the_seed_decides_and_nothing_else(small_world: World) -> None:
    state = torch.get_rng_state()
    again = World(seed=3, training_names=40, test_names=12)
    assert torch.equal(torch.get_rng_state(), state)
    other = World(seed=4, training_names=40, test_names=12)
    for part in ("train", "test"):
        here, same, different = getattr(small_world, part), getattr(again, part), getattr(other, part)
        assert here.names == same.names != different.names
        assert torch.equal(here.chains, same.chains)
        assert not torch.equal(here.chains, different.chains)


def test_more_test_names_leave_the_others_as_they_are(paper_world: World) -> None:
    larger = World(test_names=1_000)
    assert larger.train.names == paper_world.train.names
    assert torch.equal(larger.train.chains, paper_world.train.chains)
    assert larger.test.names[:100] == paper_world.test.names
    assert not set(larger.test.names) & set(larger.train.names)


def test_fewer_training_names_leave_the_test_names_as_they_are(paper_world: World) -> None:
    smaller = World(training_names=10)
    assert smaller.test.names == paper_world.test.names
    assert torch.equal(smaller.test.chains, paper_world.test.chains)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
        ({"seed": 0.5}, "seed must be an integer of at least 0, got 0.5"),
        ({"test_names": 7}, "test_names must be an integer of at least 8, got 7"),
        ({"training_names": True}, "training_names must be an integer of at least 8, got True"),
        ({"test_names": 4_000}, "training_names 3000 and test_names 4000 make 7000, but there are 6548 names"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        World(**settings)


def test_an_unknown_kind_is_refused(small_world: World) -> None:
    with pytest.raises(InputError, match="kind must be one of 'any', 'chain2', 'chain3'; got 'chain4'"):
        small_world.train.numbers("chain4")  # type: ignore[arg-type]
