"""RoPE and its rescaled forms, ALiBi and NoPE against their dense definitions in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import contentrope as cr
from contentrope.schemes.alibi import ladder
from tests.schemes.dense import (
    CLOSE,
    LONG,
    Scores,
    assert_equal_where_valid,
    naive_logits,
    rotary_scores,
    series,
    token_counts,
)
from tests.support import lively_model, random_ids
from tests.support.decoder import padding_everywhere

# --- rotary schemes on one counter -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "frequencies"),
    [
        ({}, series(6)),
        ({"rotary": cr.RotaryConfig(pairs="interleaved")}, series(6)),
        ({"rotary": cr.RotaryConfig(fraction=0.5, base=500.0)}, series(3, 500.0)),
        ({"rotary": cr.RotaryConfig(frequencies="model_wide")}, series(12).view(2, 6)),
        ({"heads": 4, "kv_heads": 2}, series(3)),
        (
            {"heads": 4, "kv_heads": 2, "rotary": cr.RotaryConfig(frequencies="model_wide")},
            series(6).view(2, 3).repeat_interleave(2, dim=0),
        ),
    ],
    ids=["plain", "interleaved", "partial", "model-wide", "grouped", "grouped model-wide"],
)
def test_rope(settings: dict[str, Any], frequencies: Tensor) -> None:
    model, ids = lively_model("rope", **settings), random_ids(2, 40)
    scores = rotary_scores(torch.arange(40)[None], frequencies, layout=model.config.rotary.pairs)
    torch.testing.assert_close(model(ids), naive_logits(model, ids, scores), **CLOSE)


@pytest.mark.parametrize("seq", [41, LONG])
def test_rope_with_padding_counts_tokens_not_columns(seq: int) -> None:
    model, ids, valid = lively_model("rope"), random_ids(3, seq), padding_everywhere(seq)
    expected = naive_logits(model, ids, rotary_scores(token_counts(valid), series(6)), valid=valid)
    assert_equal_where_valid(model(ids, valid=valid), expected, valid)


@pytest.mark.parametrize("factor", [1.0, 2.5, 16.0])
def test_pi_is_rope_at_positions_divided_by_the_factor(factor: float) -> None:
    model, ids = lively_model("pi", options={"factor": factor}), random_ids(2, 40)
    scores = rotary_scores(torch.arange(40).double()[None] / factor, series(6))
    torch.testing.assert_close(model(ids), naive_logits(model, ids, scores), **CLOSE)


@pytest.mark.parametrize("layout", ["per_head", "model_wide"])
def test_ntk_slows_the_slowest_pair_by_the_factor_and_the_fastest_not_at_all(layout: str) -> None:
    rotary = cr.RotaryConfig(frequencies=layout)
    made = lively_model("ntk", options={"factor": 8.0}, rotary=rotary).scheme.rotations.inverse_frequency.flatten()
    plain = series(len(made))
    assert made[0] == plain[0] == 1.0
    torch.testing.assert_close(made[-1], plain[-1] / 8, rtol=1e-14, atol=0)
    # Between them the slowing is geometric: the series is still one of powers.
    torch.testing.assert_close(made[1:] / made[:-1], (made[1] / made[0]).expand(len(made) - 1), rtol=1e-13, atol=0)


def test_ntk() -> None:
    model, ids = lively_model("ntk", options={"factor": 8.0}), random_ids(2, 40)
    frequencies = series(6, 10000.0 * 8.0 ** (6 / 5))
    scores = rotary_scores(torch.arange(40)[None], frequencies)
    torch.testing.assert_close(model(ids), naive_logits(model, ids, scores), **CLOSE)


def yarn_by_the_paper(pairs: int, scale: float, train_length: float, alpha: float, beta: float) -> tuple[Tensor, float]:
    """Frequencies, and the factor of the scores: Peng et al., equations 17 to 19, 21 and 22, pair by pair."""
    frequencies = []
    for pair in range(pairs):
        theta = 10000.0 ** (-pair / pairs)
        wavelength = 2 * math.pi / theta
        ratio = train_length / wavelength
        if ratio < alpha:
            gamma = 0.0
        elif ratio > beta:
            gamma = 1.0
        else:
            gamma = (ratio - alpha) / (beta - alpha)
        frequencies.append((1 - gamma) * theta / scale + gamma * theta)
    root_of_inverse_temperature = 0.1 * math.log(scale) + 1
    return torch.tensor(frequencies, dtype=torch.float64), root_of_inverse_temperature**2


@pytest.mark.parametrize(
    "options",
    [{}, {"factor": 4.0}, {"train_length": 64, "slow_turns": 0.5, "fast_turns": 4.0}, {"factor": 1.0}],
    ids=["defaults", "factor", "ramp", "factor 1"],
)
def test_yarn(options: dict[str, Any]) -> None:
    model, ids = lively_model("yarn", options=options), random_ids(2, 40)
    told = {"factor": 16.0, "train_length": 256, "slow_turns": 1.0, "fast_turns": 32.0, **options}
    frequencies, gain = yarn_by_the_paper(6, *told.values())
    scores = rotary_scores(torch.arange(40)[None], frequencies, gain=gain)
    torch.testing.assert_close(model(ids), naive_logits(model, ids, scores), **CLOSE)


def test_the_yarn_of_these_tests_has_slow_fast_and_mixed_pairs() -> None:
    """Else the three branches of the formula above would not all have been compared."""
    ratio = yarn_by_the_paper(6, 16.0, 256, 1.0, 32.0)[0] / series(6)
    assert ratio[0] == 1
    assert ratio[-1] == 1 / 16
    assert ((ratio > 1 / 16 + 1e-3) & (ratio < 1 - 1e-3)).any()


@pytest.mark.parametrize("scheme", ["pi", "ntk", "yarn"])
def test_factor_one_is_rope(scheme: str) -> None:
    rope, scaled, ids = lively_model("rope"), lively_model(scheme, options={"factor": 1.0}), random_ids(2, 40)
    scaled.load_state_dict(rope.state_dict())
    torch.testing.assert_close(scaled(ids), rope(ids), rtol=0, atol=1e-12)


# --- alibi and nope --------------------------------------------------------------------------------------------


def alibi_scores(slopes: list[float], positions: Tensor) -> Scores:
    """The bias matrix of Press et al., entry by entry: -slope * distance."""
    distance = (positions[:, :, None] - positions[:, None, :]).double()
    bias = torch.stack([-slope * distance for slope in slopes], dim=1)
    return lambda _layer, query, key: query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + bias


def test_the_slopes_of_four_heads_are_those_of_the_paper() -> None:
    assert ladder(4).tolist() == [2**-2, 2**-4, 2**-6, 2**-8]
    assert ladder(8).tolist() == [2.0**-i for i in range(1, 9)]


@pytest.mark.parametrize("seq", [40, LONG])
@pytest.mark.parametrize(
    ("settings", "slopes"),
    [
        ({"heads": 4}, [2**-2, 2**-4, 2**-6, 2**-8]),
        ({"heads": 4, "kv_heads": 2}, [2**-2, 2**-4, 2**-6, 2**-8]),
        ({"options": {"slopes": [0.3, 0.007]}}, [0.3, 0.007]),
    ],
    ids=["ladder", "grouped", "own slopes"],
)
def test_alibi(settings: dict[str, Any], slopes: list[float], seq: int) -> None:
    model, ids = lively_model("alibi", **settings), random_ids(2, seq)
    expected = naive_logits(model, ids, alibi_scores(slopes, torch.arange(seq)[None]))
    torch.testing.assert_close(model(ids), expected, **CLOSE)


@pytest.mark.parametrize("seq", [41, LONG])
def test_alibi_with_padding_measures_distance_in_tokens(seq: int) -> None:
    model, ids, valid = lively_model("alibi"), random_ids(3, seq), padding_everywhere(seq)
    expected = naive_logits(model, ids, alibi_scores([2**-4, 2**-8], token_counts(valid)), valid=valid)
    assert_equal_where_valid(model(ids, valid=valid), expected, valid)


@pytest.mark.parametrize("seq", [41, LONG])
@pytest.mark.parametrize("padded", [False, True])
def test_nope(seq: int, padded: bool) -> None:
    model, ids = lively_model("nope"), random_ids(3, seq)
    valid = padding_everywhere(seq) if padded else None
    plain: Scores = lambda _layer, query, key: query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])  # noqa: E731
    expected = naive_logits(model, ids, plain, valid=valid)
    assert_equal_where_valid(model(ids, valid=valid), expected, torch.ones_like(ids).bool() if valid is None else valid)


def test_nope_with_one_layer_does_not_know_the_order_of_earlier_tokens() -> None:
    ids = torch.arange(1, 10)[None]
    shuffled = torch.cat((ids[:, :-1].flip(1), ids[:, -1:]), dim=1)
    nope, rope = lively_model("nope", layers=1), lively_model("rope", layers=1)
    torch.testing.assert_close(nope(ids)[:, -1], nope(shuffled)[:, -1], rtol=0, atol=1e-12)
    assert (rope(ids)[:, -1] - rope(shuffled)[:, -1]).abs().max() > 1e-2
