"""Rules say what they are: what is saved of one makes it again, or tells it from another."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from contentrope.errors import InputError
from contentrope.units import (
    Boundaries,
    FixedLength,
    Rule,
    Terminators,
    TextRule,
    describe,
    require_description,
    rule_described,
)
from contentrope.units.descriptions import as_far_as_said, upgraded

TEXTS = ["a", "b.", " Mr", "\n", "c|", ""]
EVERY: list[Rule] = [
    Terminators({3, 1}),
    Terminators(()),
    FixedLength(4),
    TextRule("line", TEXTS),
    TextRule("sentence", TEXTS),
    TextRule("paragraph", TEXTS),
    TextRule("record", TEXTS, marker="|"),
    TextRule("document", TEXTS),
]


@dataclass(frozen=True)
class Every:
    """A rule of one's own that cannot be saved."""

    step: int

    def initial(self, batch_size: int, device: torch.device | str) -> Int[Tensor, "batch 1"]:
        return FixedLength(self.step).initial(batch_size, device)

    def scan(self, ids: Tensor, valid: Tensor, state: Tensor) -> tuple[Bool[Tensor, "batch seq"], Tensor]:
        return FixedLength(self.step).scan(ids, valid, state)


class Saved(Every):
    def describe(self) -> dict[str, Any]:
        return {"step": self.step, "also": (1, 2)}


def ends_of(rule: Rule) -> list[list[bool]]:
    ids = torch.tensor([[0, 3, 1, 4, 3, 2, 1, 0, 3, 3, 5, 4]])
    ends, _ = rule.scan(ids, torch.ones_like(ids, dtype=torch.bool), rule.initial(1, "cpu"))
    return ends.tolist()


@pytest.mark.parametrize("rule", EVERY, ids=repr)
def test_a_description_makes_the_same_rule_again(rule: Rule) -> None:
    require_description(rule)
    description = json.loads(json.dumps(describe(rule)))
    again = rule_described(description, lambda: TEXTS)
    assert describe(again) == description
    assert ends_of(again) == ends_of(rule)


def test_rules_that_end_other_units_have_other_descriptions() -> None:
    masks = [Boundaries(torch.tensor([row])) for row in ([True, False], [False, True], [True, False, False])]
    descriptions = [json.dumps(describe(rule)) for rule in (*EVERY, FixedLength(5), Saved(4), Saved(5), *masks)]
    assert len(set(descriptions)) == len(descriptions)
    assert describe(Boundaries(torch.tensor([[True, False]]))) == describe(masks[0])


@pytest.mark.parametrize("kind", ["line", "sentence", "paragraph"])
def test_a_vocabulary_of_the_same_size_is_told_apart_by_its_ends(kind: str) -> None:
    ours = describe(TextRule(kind, TEXTS))
    swapped = [TEXTS[3], *TEXTS[1:3], TEXTS[0], *TEXTS[4:]]
    assert describe(TextRule(kind, swapped)) != ours
    assert describe(TextRule(kind, [*TEXTS])) == ours


def test_a_fingerprint_stays_the_same_from_version_to_version() -> None:
    """What was saved by an earlier one would be refused else. Changed rules change it, and should."""
    found = {kind: describe(TextRule(kind, TEXTS))["parameters"]["fingerprint"] for kind in ("line", "sentence")}
    assert found == {"line": "c1f184b3312f363998a49a2ff7d1fad8", "sentence": "20d40b14d569304a8dd2e1a0170ebc20"}


def test_a_rule_of_ones_own_is_described_by_itself() -> None:
    assert describe(Saved(3)) == {"rule": "Saved", "parameters": {"step": 3, "also": [1, 2]}}
    require_description(Saved(3))
    with pytest.raises(InputError, match="Saved"):
        rule_described(describe(Saved(3)), list)


def test_a_rule_that_says_nothing_cannot_be_saved() -> None:
    assert describe(Every(3)) == {"rule": "Every"}
    with pytest.raises(InputError, match="Every"):
        require_description(Every(3))


def test_descriptions_that_json_cannot_hold_are_refused() -> None:
    class Bad(Every):
        def describe(self) -> dict[str, Any]:
            return {"step": torch.ones(2)}

    with pytest.raises(InputError, match="Bad"):
        describe(Bad(3))


def test_a_namesake_of_one_of_ours_is_not_taken_for_it() -> None:
    namesake = type("FixedLength", (Saved,), {"__qualname__": "FixedLength"})
    with pytest.raises(InputError, match="FixedLength"):
        describe(namesake(3))


EARLIER: list[tuple[dict[str, Any], Rule]] = [
    ({"terminators": [1, 3]}, EVERY[0]),
    ({"terminators": []}, EVERY[1]),
    ({"length": 4}, EVERY[2]),
    ({"kind": "line", "marker": None, "vocabulary": 6}, EVERY[3]),
    ({"kind": "record", "marker": "|", "vocabulary": 6}, EVERY[6]),
    ({"rule": "Saved"}, Saved(4)),
]


@pytest.mark.parametrize(("saved", "rule"), EARLIER, ids=str)
def test_descriptions_of_earlier_versions_are_read(saved: dict[str, Any], rule: Rule) -> None:
    saved = upgraded(saved)
    assert as_far_as_said(describe(rule), saved) == saved
    other = Terminators({5}) if isinstance(rule, FixedLength) else FixedLength(9)
    assert as_far_as_said(describe(other), saved) != saved


BROKEN: list[Any] = [
    7,
    [],
    {},
    {"rule": 3},
    {"rule": "FixedLength", "parameters": [8]},
    {"rule": "FixedLength", "parameters": {"m": 8}},
    {"rule": "FixedLength", "parameters": {"n": "8"}},
    {"rule": "FixedLength"},
    {"rule": "TextRule", "parameters": {"kind": "line"}},
    {"rule": "TextRule", "parameters": {"kind": "verse", "marker": None}},
    {"rule": "TextRule", "parameters": {"kind": ["line"], "marker": None}},
    {"rule": "TextRule", "parameters": {"kind": "record", "marker": 5}},
    {"rule": "Terminators", "parameters": {"ids": ["a"]}},
    {"rule": "Terminators", "parameters": {"ids": 3}},
    {"terminators": [[1]]},
]


@pytest.mark.parametrize("saved", BROKEN, ids=str)
def test_what_describes_no_rule_is_refused(saved: Any) -> None:
    with pytest.raises(InputError):
        rule_described(saved, lambda: TEXTS)
