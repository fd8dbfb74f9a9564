"""The facts beside the asked one, read back from the text: what each condition promises, on every row."""

from collections import Counter
from itertools import permutations, product
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contentrope.errors import InputError
from experiments.facts.generator.sampler import (
    Condition,
    Names,
    Sampler,
    below,
    most_distractors,
    shuffled,
    without_repetition,
)
from experiments.facts.generator.words import DOMAINS
from experiments.facts.generator.world import RELATIONS, Kind, World
from tests.experiments.facts.generator.chances import assert_equally_likely, assert_likely
from tests.experiments.facts.generator.conftest import made
from tests.experiments.facts.generator.parsing import RANKS, Example, Fact, examples, names_of, roles_of, true_facts

KINDS = ("any", "chain2", "chain3")


def others(example: Example) -> list[Fact]:
    return [fact for fact in example.facts if fact != example.asked]


def domain_of(fact: Fact) -> str:
    return RANKS[fact[0][0]][0]


@pytest.mark.parametrize(("kind", "count"), list(product(KINDS, [0, 1, 2, 3, 4, 7, 19])))
def test_same_entities(kind: Kind, count: int, sampler: Sampler, generator: torch.Generator) -> None:
    drawn = sampler.draw(100, generator, kind=kind, condition="same entities", distractors=count)
    for example in examples(sampler, drawn):
        asked, besides = example.asked, others(example)
        assert len(set(besides)) == len(besides) == count
        assert {names_of(fact) for fact in besides} <= {names_of(asked)}
        inside = [fact for fact in besides if domain_of(fact) == domain_of(asked)]
        assert len(inside) == min(count, 6 - len(asked))


@pytest.mark.parametrize(("kind", "count"), [("chain2", 24), ("chain3", 19)])
def test_the_same_entities_in_all_relations(
    kind: Kind, count: int, sampler: Sampler, generator: torch.Generator
) -> None:
    drawn = sampler.draw(20, generator, kind=kind, condition="same entities", distractors=count)
    for example in examples(sampler, drawn):
        roles = {relation.roles for relation in RELATIONS if len(relation.roles) == example.size}
        assert {roles_of(fact) for fact in example.facts} == roles
    with pytest.raises(InputError, match=f"at most {count} for condition 'same entities' and kind '{kind}', got"):
        sampler.draw(1, generator, kind=kind, condition="same entities", distractors=count + 1)


def test_other_relations_of_the_domain_are_equally_likely(sampler: Sampler, generator: torch.Generator) -> None:
    drawn = sampler.draw(3_000, generator, kind="chain3", condition="same entities", distractors=1)
    found = Counter((roles_of(e.asked), roles_of(others(e)[0])) for e in examples(sampler, drawn))
    triples = [[r.roles for r in RELATIONS if len(r.roles) == 3 and r.domain == domain] for domain in DOMAINS]
    assert_equally_likely(found, [(a, b) for own in triples for a, b in product(own, own) if a != b])


def test_relations_of_other_domains_are_equally_likely(sampler: Sampler, generator: torch.Generator) -> None:
    drawn = sampler.draw(5_000, generator, kind="chain3", condition="same entities", distractors=5)
    asked = [r.domain for r in RELATIONS].index("work", 25)
    found: Counter[tuple[str, ...]] = Counter()
    for example in examples(sampler, drawn, (drawn.relation == asked).nonzero()[:, 0].tolist()):
        found.update(roles_of(fact) for fact in others(example) if domain_of(fact) != "work")
    assert_equally_likely(found, [r.roles for r in RELATIONS if len(r.roles) == 3 and r.domain != "work"])


@pytest.mark.parametrize(("kind", "count", "names"), list(product(KINDS, [0, 1, 4], ["train", "test"])))
def test_same_relation(kind: Kind, count: int, names: Names, sampler: Sampler, generator: torch.Generator) -> None:
    true = true_facts(getattr(sampler.world, names))
    drawn = sampler.draw(100, generator, names=names, kind=kind, condition="same relation", distractors=count)
    for example in examples(sampler, drawn):
        besides = others(example)
        assert len(set(besides)) == len(besides) == count
        assert set(besides) < true
        assert {roles_of(fact) for fact in besides} <= {roles_of(example.asked)}
        assert not {name for fact in besides for name in names_of(fact)} & set(names_of(example.asked))


@pytest.mark.parametrize(("kind", "most"), [("chain2", 8), ("chain3", 5), ("any", 5)])
def test_as_many_of_the_same_relation_as_every_fact_has(
    kind: Kind, most: int, sampler: Sampler, generator: torch.Generator
) -> None:
    """12 names: 11 pairs, of which up to 3 share a name with the asked one; 10 triples, up to 5."""
    assert most_distractors(sampler.world.test, kind, "same relation") == most
    drawn = sampler.draw(200, generator, names="test", kind=kind, condition="same relation", distractors=most)
    assert all(len(set(example.facts)) == most + 1 for example in examples(sampler, drawn))
    with pytest.raises(InputError, match=rf"at most {most} .*got {most + 1}.*more than 12 names \(test_names"):
        sampler.draw(1, generator, names="test", kind=kind, condition="same relation", distractors=most + 1)


def test_facts_of_the_same_relation_are_equally_likely(sampler: Sampler, generator: torch.Generator) -> None:
    """From one end of a chain to the other, whichever is asked."""
    drawn = sampler.draw(20_000, generator, names="test", kind="chain3", condition="same relation", distractors=(0, 2))
    names = [sampler.world.test.names[i] for i in sampler.world.test.chains[0].tolist()]
    counts: dict[int, Counter[int]] = {place: Counter() for place in range(10)}
    family = [i for i, relation in enumerate(RELATIONS) if relation.domain == "family"]
    for example in examples(sampler, drawn, (drawn.relation == family[-1]).nonzero()[:, 0].tolist()):
        counts[names.index(example.asked[0][1])].update(names.index(fact[0][1]) for fact in others(example))
    for asked, found in counts.items():
        assert_equally_likely(found, [place for place in range(10) if abs(place - asked) > 2])


@pytest.mark.parametrize("names", ["train", "test"])
def test_256_of_the_same_relation(names: Names, session_cache: Path, generator: torch.Generator) -> None:
    sampler = Sampler(made(session_cache, test_names=1_000))
    drawn = sampler.draw(3, generator, names=names, condition="same relation", distractors=256)
    for example in examples(sampler, drawn):
        assert len(set(example.facts)) == 257
        assert {roles_of(fact) for fact in example.facts} == {roles_of(example.asked)}


def test_the_limit_for_the_papers_test_names(paper_world: World) -> None:
    limits = {kind: most_distractors(paper_world.test, kind, "same relation") for kind in ("chain2", "chain3")}
    assert limits == {"chain2": 96, "chain3": 93}


def test_mixed_distractors_are_of_all_three_sorts(sampler: Sampler, generator: torch.Generator) -> None:
    true = true_facts(sampler.world.train)
    drawn = sampler.draw(3_000, generator, condition="mixed", distractors=3)
    sorts: Counter[str] = Counter()
    alike = 0
    for example in examples(sampler, drawn):
        asked = example.asked
        alike += {roles_of(fact) for fact in example.facts} == {roles_of(asked)}
        assert example.facts.count(asked) == 1
        for fact in others(example):
            if names_of(fact) == names_of(asked):
                sorts["same entities"] += 1
            else:
                assert fact in true
                apart = not set(names_of(fact)) & set(names_of(asked))
                sorts["same relation" if apart and roles_of(fact) == roles_of(asked) else "any"] += 1
    # A few of "any" look like one of the others: 36 and 4 of 1,735 facts.
    assert_likely(sorts, {"same entities": 1 / 6 + 0.0005, "same relation": 2 / 3 + 0.0035, "any": 1 / 6 - 0.004})
    assert 0.49 < alike / 3_000 < 0.56  # half, and one in 54 of the others


def test_mixed_takes_any_number_and_never_repeats_the_asked_fact(sampler: Sampler, generator: torch.Generator) -> None:
    drawn = sampler.draw(30, generator, names="test", condition="mixed", distractors=90)
    for example in examples(sampler, drawn):
        assert len(example.facts) == 91
        assert example.facts.count(example.asked) == 1


def test_mixed_distractors_with_the_asked_names_or_relation_differ(
    sampler: Sampler, generator: torch.Generator
) -> None:
    true, repeated = true_facts(sampler.world.train), 0
    for example in examples(sampler, sampler.draw(300, generator, condition="mixed", distractors=5)):
        besides, own = others(example), domain_of(example.asked)
        repeated += len(besides) - len(set(besides))
        entities = [fact for fact in besides if names_of(fact) == names_of(example.asked)]
        # The domain's own relations come first; a true fact elsewhere may be there as any fact at all.
        elsewhere = [fact for fact in entities if domain_of(fact) != own and fact not in true]
        assert len(elsewhere) <= max(0, len(entities) - (6 - example.size))
    assert repeated < 20  # only where any fact at all happens to be one of the others


@pytest.mark.parametrize("kind", ["chain2", "chain3"])
def test_mixed_distractors_have_the_kind_asked_for(kind: Kind, sampler: Sampler, generator: torch.Generator) -> None:
    drawn = sampler.draw(200, generator, kind=kind, condition="mixed", distractors=(0, 7))
    sizes = {len(fact) for example in examples(sampler, drawn) for fact in example.facts}
    assert sizes == {int(kind[-1])}


@pytest.mark.parametrize(
    ("condition", "distractors", "message"),
    [
        ("single", 1, "condition 'single' has no distractors, got 1"),
        ("mixed", -1, "distractors must be an integer of at least 0, got -1"),
        ("mixed", (3, 2), "distractors must be the least and the most, got 3 and 2"),
        ("mixed", (1, 2, 3), r"distractors must be one number, or the least and the most; got \(1, 2, 3\)"),
        ("mixed", 2.5, "distractors must be an integer of at least 0, got 2.5"),
        ("same names", 1, "condition must be one of 'single', 'same entities', 'same relation', 'mixed'; got 'same n"),
    ],
)
def test_what_is_refused(
    condition: Condition, distractors: int, message: str, sampler: Sampler, generator: torch.Generator
) -> None:
    with pytest.raises(InputError, match=message):
        sampler.draw(1, generator, condition=condition, distractors=distractors)


# --- random integers for many rows at once ---------------------------------------------------------------------------

seeds = st.integers(0, 2**32)


@given(seeds, st.lists(st.integers(1, 10), min_size=1, max_size=20))
def test_below_stays_below(seed: int, bounds: list[int]) -> None:
    drawn = below(torch.tensor(bounds), torch.Generator().manual_seed(seed)).tolist()
    assert all(0 <= number < bound for number, bound in zip(drawn, bounds, strict=True))


@given(seeds, st.lists(st.integers(1, 300), min_size=1, max_size=5), st.integers(0, 300))
def test_no_number_twice(seed: int, pools: list[int], count: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    drawn = without_repetition(torch.tensor(pools).unsqueeze(1), count, generator)
    assert drawn.shape == (len(pools), count)
    for row, pool in zip(drawn.tolist(), pools, strict=True):
        meant = row[:pool]
        assert len(set(meant)) == len(meant)
        assert set(meant) <= set(range(pool))


def test_every_order_is_equally_likely() -> None:
    drawn = without_repetition(torch.full((24_000, 1), 4), 3, torch.Generator().manual_seed(0))
    assert_equally_likely(Counter(map(tuple, drawn.tolist())), list(permutations(range(4), 3)))


def test_shuffling_puts_what_is_present_first() -> None:
    present = (torch.arange(4) < torch.tensor([[1], [3], [4]])).repeat(4_000, 1)
    order = shuffled(present, torch.Generator().manual_seed(0))
    assert torch.equal(order.sort(1).values, torch.arange(4).expand_as(order))
    assert torch.equal(present.gather(1, order), present)
    assert_equally_likely(Counter(map(tuple, order[1::3, :3].tolist())), list(permutations(range(3))))
