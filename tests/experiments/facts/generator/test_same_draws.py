"""A seed draws what it drew when the committed results were made: digests of names, facts, examples and batches."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments.facts import ROWS
from experiments.facts.batches import FactBatches
from experiments.facts.config import FactsConfig
from experiments.facts.generator.sampler import Drawn, Sampler
from experiments.facts.generator.sentences import Layout
from experiments.facts.generator.world import World
from experiments.facts.run import Facts
from tests.experiments.facts.generator.parsing import every_fact


def digest(*parts: Tensor | Sequence[str]) -> str:
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            found.update(f"{tuple(part.shape)}".encode() + part.long().contiguous().numpy().tobytes())
        else:
            found.update("\n".join(part).encode())
    return found.hexdigest()[:12]


def digest_of(drawn: Drawn) -> str:
    texts = drawn.ids, drawn.lengths, drawn.scored, drawn.text_start
    return digest(*texts, drawn.facts, drawn.place, drawn.relation)


@pytest.mark.parametrize(
    ("seed", "test_names", "expected"),
    [
        (0, 100, "5436400e5093"),
        (0, 1_000, "ef8504e06e69"),
        (1, 100, "fc44c863be0c"),
    ],
)
def test_names_and_facts(seed: int, test_names: int, expected: str) -> None:
    world = World(seed, test_names=test_names)
    facts = [f"{role} {name}" for fact in every_fact(world.test) for role, name in fact]
    assert digest(world.train.names, world.test.names, world.train.chains, world.test.chains, facts) == expected


SETTINGS: dict[str, dict[str, Any]] = {
    "single": {},
    "entities": {"kind": "chain2", "condition": "same entities", "distractors": 12},
    "relation": {"names": "test", "condition": "same relation", "distractors": (0, 30)},
    "mixed": {"condition": "mixed", "distractors": (0, 7), "width": 500},
    "mixed triples": {"kind": "chain3", "names": "test", "condition": "mixed"},
}


@pytest.mark.parametrize(
    ("layout", "name", "expected"),
    [
        ("end", "single", "d7301a8a9c34 a29b04791997"),
        ("end", "entities", "87017232d2c6 2b0cb7ab0d10"),
        ("end", "relation", "26cbcb4dd13e a3a43fcf4bac"),
        ("end", "mixed", "fe514d18b708 b79d59c4be73"),
        ("end", "mixed triples", "151c4d982ab6 19def9a6ee84"),
        ("apart", "mixed", "fe514d18b708 b79d59c4be73"),
        ("bar", "single", "d4ccf7edf298 a09e8c9793e1"),
        ("bar", "entities", "2d36ba05afce 124a7ab1800b"),
        ("bar", "relation", "8a1c07cc1890 53e149474b7d"),
        ("bar", "mixed", "a615c5080580 4b2149cf7ffb"),
        ("bar", "mixed triples", "519554228574 7d8c86dd4ff7"),
    ],
)
def test_examples_and_their_other_orders(layout: Layout, name: str, expected: str, paper_world: World) -> None:
    sampler, generator = Sampler(paper_world, layout), torch.Generator().manual_seed(11)
    first = sampler.draw(64, generator, **SETTINGS[name])
    second = sampler.permuted(sampler.draw(64, generator, **SETTINGS[name]), generator)
    assert f"{digest_of(first)} {digest_of(second)}" == expected


def test_the_rows_of_the_table() -> None:
    experiment = Facts(FactsConfig(examples=20))
    found = [experiment.examples(experiment.sampler(), row) for row in ROWS]
    assert digest(*(drawn.ids for drawn in found), *(drawn.scored for drawn in found)) == "71ab8c831bec"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "720184025724"),
        ({"facts": (1, 8), "ramp": 512, "answers_from": 256}, "308d2affde68"),
    ],
)
def test_batches_of_training(settings: dict[str, Any], expected: str, paper_world: World) -> None:
    batches = FactBatches(Sampler(paper_world), **settings)
    seen = [batches.at(step, 4, seed) for step, seed in ((0, 0), (127, 0), (300, 0), (300, 1), (600, 0))]
    assert digest(*(batch.inputs["ids"] for batch in seen), *(batch.targets for batch in seen)) == expected
