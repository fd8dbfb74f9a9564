"""The schemes that read units against their dense definitions in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import contentrope as cr
from contentrope.address import random_angles
from contentrope.context import AddressedContext
from tests.schemes.dense import (
    CLOSE,
    LONG,
    Scores,
    assert_equal_where_valid,
    drawn_seeds,
    layer_norm,
    naive_logits,
    rotary_scores,
    rotated_by,
    series,
)
from tests.support import TERMINATOR, lively_model, random_ids
from tests.support.decoder import padding_everywhere


def units_by_hand(ids: Tensor, max_length: int, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Unit, local position and whether it closes, token by token; unit -1 for padding."""
    unit, local, closes = torch.full_like(ids, -1), torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
    for row in range(len(ids)):
        current = position = 0
        for column in range(ids.shape[1]):
            if not valid[row, column]:
                continue
            unit[row, column], local[row, column] = current, position
            position += 1
            if ids[row, column] == TERMINATOR or position == max_length:
                closes[row, column] = True
                current, position = current + 1, 0
    return unit, local, closes


@pytest.mark.parametrize(("seq", "padded"), [(41, False), (41, True), (LONG, True)])
def test_bipe_adds_the_place_in_the_unit_and_rotates_by_unit(seq: int, padded: bool) -> None:
    model, ids = lively_model("bipe"), random_ids(3, seq)
    valid = padding_everywhere(seq) if padded else torch.ones_like(ids).bool()
    unit, local, _ = units_by_hand(ids, 7, valid)
    scores = rotary_scores(unit, series(6))
    expected = naive_logits(model, ids, scores, valid=valid, added=model.scheme.inside_unit.weight[local])
    assert_equal_where_valid(model(ids, valid=valid if padded else None), expected, valid)


def test_the_learned_positions_of_bipe_start_as_small_as_the_token_embeddings() -> None:
    torch.manual_seed(0)
    config = cr.ModelConfig(vocab_size=65, dim=128, layers=1, heads=4, scheme="bipe", terminators=(TERMINATOR,))
    model = cr.Transformer(config)
    assert 0.019 < model.embedding.weight.std() < 0.021
    assert 0.019 < model.scheme.inside_unit.weight.std() < 0.021


def addressed_scores(
    model: cr.Transformer, ids: Tensor, valid: Tensor, address: Tensor, alpha: Callable[[int], Any]
) -> Scores:
    """The table of pairs, both versions of every score dense. address: (batch, seq, kv_heads, pairs) by token."""
    config = model.config
    unit, local, closes = units_by_hand(ids, config.max_unit_length, valid)
    same_unit = (unit[:, :, None] == unit[:, None, :])[:, None]
    inside = local.double()[:, None, :, None] * series(config.pair_count, config.rotary.base)
    address = address.double().transpose(1, 2).repeat_interleave(config.group, dim=1)
    query_angles = inside + address * closes[:, None, :, None]
    log_units = unit.clamp(min=1).double().log()[:, None, :, None]

    def scores(layer: int, query: Tensor, key: Tensor) -> Tensor:
        query = rotated_by(query, query_angles)
        local_score = query @ rotated_by(key, inside.expand_as(address)).transpose(-1, -2)
        addressed_score = query @ rotated_by(key, inside + address).transpose(-1, -2)
        chosen = torch.where(same_unit & ~closes[:, None, :, None], local_score, addressed_score)
        rivalry = torch.as_tensor(alpha(layer)).view(-1, 1, 1) * log_units
        return chosen / math.sqrt(query.shape[-1]) - torch.where(same_unit, 0.0, rivalry)

    return scores


def content_address(model: cr.Transformer, ids: Tensor, valid: Tensor) -> Tensor:
    """W LN(mean of R_i x_i), unit by unit, given to every token of the unit."""
    config, address = model.config, model.scheme.address
    unit, local, _ = units_by_hand(ids, config.max_unit_length, valid)
    inside = local.double()[:, None, :, None] * series(config.pair_count)
    by_head = model.embedding.weight[ids].unflatten(-1, (config.heads, -1)).transpose(1, 2)
    rotated = rotated_by(by_head, inside.expand(-1, config.heads, -1, -1)).transpose(1, 2).flatten(2)
    out = torch.zeros(*ids.shape, config.key_heads * config.pair_count, dtype=torch.float64)
    for row in range(len(ids)):
        for number in range(int(unit[row].max()) + 1):
            of_unit = unit[row] == number
            normed = layer_norm(rotated[row, of_unit].mean(0), address.norm)
            out[row, of_unit] = address.project.weight @ normed + address.project.bias
    return out.unflatten(-1, (config.key_heads, config.pair_count))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"options": {"competition": 1.0}},
        {"options": {"competition": 0.7, "learn_competition": True}},
        {"heads": 4, "kv_heads": 2, "options": {"competition": 1}},
    ],
    ids=["as in the paper", "competition", "learned competition", "grouped"],
)
@pytest.mark.parametrize("padded", [False, True])
def test_content(settings: dict[str, Any], padded: bool) -> None:
    model, ids = lively_model("content", **settings), random_ids(3, 90)
    competition = model.scheme.reader.competition
    if competition.learned is not None:
        with torch.no_grad():
            competition.learned.copy_(torch.rand(3, 2))
    valid = padding_everywhere(90) if padded else torch.ones_like(ids).bool()
    scores = addressed_scores(model, ids, valid, content_address(model, ids, valid), competition.of)
    expected = naive_logits(model, ids, scores, valid=valid)
    assert_equal_where_valid(model(ids, valid=valid if padded else None), expected, valid)


def test_competition_matters_from_the_second_completed_unit_on() -> None:
    paper, extended = lively_model("content"), lively_model("content", options={"competition": 1.0})
    ids = torch.tensor([[3, 4, 0, 5, 6, 0, 7, 8]])
    changed = (paper(ids) - extended(ids)).abs().amax(-1)[0]
    assert (changed[:6] < 1e-12).all()
    assert (changed[6:] > 1e-4).all()


@pytest.mark.parametrize("padded", [False, True])
def test_random_is_content_at_drawn_addresses(padded: bool) -> None:
    model, ids = lively_model("random", options={"competition": 0.5}), random_ids(3, 60)
    valid = padding_everywhere(60) if padded else torch.ones_like(ids).bool()
    unit, _, _ = units_by_hand(ids, 7, valid)
    address = random_angles(drawn_seeds(4, 3), unit.clamp(min=0), 2, 6)
    found = model(ids, valid=valid if padded else None)
    scores = addressed_scores(model, ids, valid, address, lambda _: 0.5)
    assert_equal_where_valid(found, naive_logits(model, ids, scores, valid=valid), valid)


@pytest.mark.parametrize("training", [True, False])
def test_random_angles_are_standard_normal_in_training_and_out_of_it(
    training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Tensor] = []
    set_rotations = AddressedContext._set_rotations

    def spy(context: AddressedContext, by_slot: Tensor | None) -> None:
        assert by_slot is not None
        seen.append(by_slot.detach())
        set_rotations(context, by_slot)

    monkeypatch.setattr(AddressedContext, "_set_rotations", spy)
    lively_model("random").train(training)(random_ids(8, 200))
    angles = seen[0]
    assert angles.mean().abs() < 5 / angles.numel() ** 0.5
    assert angles.std().item() == pytest.approx(1.0, rel=5 / (2 * angles.numel()) ** 0.5)


@pytest.mark.parametrize("options", [{}, {"competition": 1.0}], ids=["as in the paper", "competition"])
def test_local_is_content_without_addresses(options: dict[str, Any]) -> None:
    content, local = lively_model("content", options=options), lively_model("local", options=options)
    ids = random_ids(2, 70)
    with torch.no_grad():
        content.scheme.address.project.weight.zero_()
        content.scheme.address.project.bias.zero_()
    common = {name: tensor for name, tensor in content.state_dict().items() if "address" not in name}
    local.load_state_dict(common)
    torch.testing.assert_close(local(ids), content(ids), rtol=0, atol=1e-12)
    valid = torch.ones_like(ids).bool()
    nothing = torch.zeros(*ids.shape, 2, 6)
    scores = addressed_scores(local, ids, valid, nothing, lambda _: options.get("competition", 0.0))
    torch.testing.assert_close(local(ids), naive_logits(local, ids, scores), **CLOSE)
