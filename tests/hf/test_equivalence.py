"""The one test that catches a wrong layout: with two units, an address that says "that many positions back" gives at
local positions what the untouched model gives at global ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import contentrope.hf as chf
from contentrope.hf.addresses import Addresses
from tests.hf.models import ARCHITECTURES, TERMINATOR, attached, logits, random_ids, tiny

FIRST = 8
"""Tokens of the first unit."""
LONGEST = 64
TOLERANCE = 2e-4
"""Models compute cosines and sines in float32."""


class Backwards(Addresses):
    """The address of the first unit: so many positions before the second."""

    gate = 0.0

    def forward(self, embedded: Tensor, units: Any, slot: Tensor, open_unit: Any) -> list[Tensor]:
        number = torch.arange(slot.shape[1]) + units.unit[:, :1]
        found = []
        for rotary in self.rotaries:
            angles = -(1 - self.gate) * FIRST * rotary.frequency.expand(rotary.heads, -1)
            found.append(torch.where((number == 0)[..., None, None], angles, 0.0))
        return found

    def are_zero(self) -> bool:
        return False


def two_units(seq: int = 23) -> Tensor:
    ids = random_ids(2, seq, end_rate=0.0)
    ids[:, FIRST - 1] = TERMINATOR
    return ids


def attach_backwards(name: str, gate: float = 0.0) -> tuple[Any, Tensor]:
    model, ids = tiny(name), two_units()
    expected = logits(model, ids)
    chf.attach(model, units={TERMINATOR}, positions=gate, max_length=LONGEST, check=False)
    found = chf.adapter_of(model)
    model.contentrope = Backwards(found.rotaries, model.config.hidden_size, LONGEST).double()
    model.contentrope.gate = gate
    return model, expected


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_two_units_at_local_positions_are_one_text_at_global_ones(name: str) -> None:
    model, expected = attach_backwards(name)
    torch.testing.assert_close(logits(model, two_units()), expected, rtol=0, atol=TOLERANCE)
    model.contentrope.gate = 1.0
    moved = (logits(model, two_units()) - expected).abs().max()
    assert float(moved) > 100 * TOLERANCE, "nothing depends on positions here"


@pytest.mark.parametrize("name", ["llama", "glm", "gemma3"])
@pytest.mark.parametrize("gate", [1.0, 0.7])
def test_the_same_between_global_and_local(name: str, gate: float) -> None:
    model, expected = attach_backwards(name, gate)
    torch.testing.assert_close(logits(model, two_units()), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_same_token_by_token(name: str) -> None:
    model, expected = attach_backwards(name)
    cache, parts, ids = None, [], two_units()
    for t in range(ids.shape[1]):
        with torch.no_grad():
            out = model(ids[:, t : t + 1], past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        parts.append(out.logits)
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_token_alone_is_the_first_of_many(name: str) -> None:
    """Its only key is of its own unit, where no address counts. A sink tells a query that was rotated otherwise."""
    model, ids = attached(name), two_units()
    expected = logits(model, ids)[:, :1]
    torch.testing.assert_close(logits(model, ids[:, :1], use_cache=False), expected, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(logits(model, ids[:, :1], use_cache=True), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["llama", "cohere", "phi", "nanochat"])
@pytest.mark.parametrize("wrong", ["pairs", "backwards"])
def test_a_wrong_layout_is_caught(name: str, wrong: str) -> None:
    model, expected = attach_backwards(name)
    adapter = chf.adapter_of(model)
    (rotary,) = adapter.rotaries
    other = {"pairs": "interleaved" if rotary.pairs == "half" else "half", "backwards": not rotary.backwards}
    adapter.rotaries[0] = replace(rotary, **{wrong: other[wrong]})
    assert float((logits(model, two_units()) - expected).abs().max()) > 100 * TOLERANCE
