"""Anchors: while a unit is open it goes on, head by head, from units before it.

Causality, streaming, caches and compilation are tested with those of all schemes.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import contentrope as cr
from contentrope.rotary import Rotation, rotate, rotation_of
from tests.support import TERMINATOR, lively_model, random_ids
from tests.support.decoder import dense_logits


def by_hand(model: cr.Transformer, ids: Tensor, anchors: tuple[int, ...]) -> Tensor:
    """Logits of one row, pair by pair from the definition."""
    units = cr.segment(ids, cr.Terminators({TERMINATOR}), max_length=model.config.max_unit_length)
    unit, closes = units.unit[0].tolist(), units.closes[0].tolist()
    scheme = model.scheme
    local = scheme.reader.rotations.at(units.local, torch.float64, bound=model.config.max_unit_length)
    rotated = rotate(model.embedding(ids).unflatten(-1, (model.config.heads, -1)), local).flatten(-2)[0]
    address = {}
    for e in set(unit):
        tokens = rotated[[t for t, u in enumerate(unit) if u == e]]
        address[e] = scheme.address(tokens.sum(0)[None, None], torch.tensor([[float(len(tokens))]]))[0, 0]
    none = torch.zeros_like(address[0])

    def carried(e: int) -> Tensor:
        """What unit e carries while it is open, (heads, pairs)."""
        frequency = scheme.reader.rotations.inverse_frequency[0]
        by_head = []
        for head, d in enumerate(anchors):
            since = unit.index(e) - unit.index(e - d) if d <= e else 0
            by_head.append(address[e - d][head] + since * frequency if 0 < d <= e else none[head])
        return torch.stack(by_head)

    def scores(layer: int, hidden: Tensor, query: Tensor, key: Tensor) -> Tensor:
        turned_query, turned_key = (rotate(x.transpose(1, 2), local)[0] for x in (query, key))
        out = torch.full((model.config.heads, len(unit), len(unit)), -math.inf, dtype=torch.float64)
        for t, e in enumerate(unit):
            of_query = address[e] if closes[t] else carried(e)
            for s in range(t + 1):
                of_key = of_query if unit[s] == e else address[unit[s]]
                relative = rotation_of((of_key - of_query)[None, None])
                moved = rotate(turned_key[s][None, None], Rotation(relative.cos, relative.sin))[0, 0]
                out[:, t, s] = (turned_query[t] * moved).sum(-1) / math.sqrt(model.config.head_dim)
        return out[None]

    return dense_logits(model, ids, scores)


@pytest.mark.parametrize("backend", ["reference", "tiled"])
@pytest.mark.parametrize("anchors", [(1, 1), (0, 1), (2, 0), (1, 3)], ids=str)
def test_the_model_is_the_definition(anchors: tuple[int, ...], backend: str) -> None:
    model, ids = lively_model("content", options={"anchors": anchors}, backend=backend, layers=2), random_ids(1, 23)
    with torch.no_grad():
        torch.testing.assert_close(model(ids), by_hand(model, ids, anchors), rtol=0, atol=1e-10)
        assert not torch.allclose(model(ids), by_hand(model, ids, (0, 0)), atol=1e-3)


def test_without_anchors_the_definition_is_the_papers() -> None:
    model, ids = lively_model("content", layers=2), random_ids(1, 23)
    with torch.no_grad():
        torch.testing.assert_close(model(ids), by_hand(model, ids, (0, 0)), rtol=0, atol=1e-10)


def test_noise_does_not_reach_the_unit_before() -> None:
    """Two units: the open one and the one it is anchored to share the noisy address, which cancels."""
    ids = random_ids(1, 14, end_rate=0.0)
    ids[0, 5] = TERMINATOR
    changed = {}
    for anchors in ((1, 1), (1, 2)):
        options = {"noise": 0.7, "anchors": anchors}
        model = lively_model("content", options=options, layers=1, max_unit_length=20).train()
        torch.manual_seed(1)
        one = model(ids)
        torch.manual_seed(2)
        changed[anchors] = (model(ids) - one)[:, 6:].abs().max().item()
    assert changed[1, 1] < 1e-12
    assert changed[1, 2] > 1e-3


def test_gradients_reach_the_address_through_what_is_carried() -> None:
    model, ids = lively_model("content", options={"anchors": (1, 2)}, layers=2), random_ids(2, 20)
    parameter = model.scheme.address.project.bias
    (exact,) = torch.autograd.grad(model(ids).square().sum(), parameter)
    step = 1e-6
    for index in range(0, len(parameter), 5):
        with torch.no_grad():
            parameter[index] += step
            above = model(ids).square().sum()
            parameter[index] -= 2 * step
            below = model(ids).square().sum()
            parameter[index] += step
        assert exact[index].item() == pytest.approx(float((above - below) / (2 * step)), rel=1e-5, abs=1e-5)


def test_two_units_are_ordinary_rope_to_a_head_anchored_one_back() -> None:
    """All heads anchored to the unit before: a text of two units reads as one of rope, whatever the addresses are."""
    ids = random_ids(1, 16, end_rate=0.0)
    ids[0, 6] = TERMINATOR
    anchored = lively_model("content", options={"anchors": (1, 1)}, max_unit_length=20)
    rope = lively_model("rope")
    rope.load_state_dict({k: v for k, v in anchored.state_dict().items() if not k.startswith("scheme")}, strict=False)
    with torch.no_grad():
        torch.testing.assert_close(anchored(ids), rope(ids), rtol=0, atol=1e-12)
        three = random_ids(1, 16, end_rate=0.0)
        three[0, [4, 9]] = TERMINATOR
        assert not torch.allclose(anchored(three), rope(three), atol=1e-3), "the control: a third unit has an address"


@pytest.mark.parametrize("anchors", [(1,), (1, 2, 3), (-1, 1), (1, 1.5), (0, 0)], ids=str)
def test_senseless_anchors_are_refused(anchors: tuple[int, ...]) -> None:
    with pytest.raises(cr.InputError, match="must be 2 whole numbers, one per key/value head"):
        lively_model("content", options={"anchors": anchors})


def test_memory_units_have_no_order_to_be_anchored_in() -> None:
    model, ids = lively_model("content", options={"anchors": (0, 1)}), random_ids(1, 9)
    with pytest.raises(cr.InputError, match="anchors give units an order, memory units have none; leave out memory="):
        model(ids, memory=torch.ones_like(ids, dtype=torch.bool))
    with pytest.raises(cr.InputError, match="leave out reader"):
        lively_model("content", options={"anchors": (0, 1)}, reader=(3,))
