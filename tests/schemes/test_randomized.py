"""Randomized positions: RoPE at the drawn positions, and how these are drawn."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import contentrope as cr
from tests.schemes.dense import assert_equal_where_valid, drawn_seeds, naive_logits, rotary_scores, series, token_counts
from tests.support import lively_model, random_ids
from tests.support.decoder import padding_everywhere


@pytest.mark.parametrize("padded", [False, True])
def test_randomized_is_rope_at_its_drawn_positions(padded: bool) -> None:
    model, ids = lively_model("randomized", options={"range": 500}), random_ids(3, 40)
    valid = padding_everywhere(40) if padded else torch.ones_like(ids).bool()
    positions = model.scheme._positions(drawn_seeds(3, 3), 40)
    found = model(ids, valid=valid if padded else None)
    scores = rotary_scores(positions.gather(1, token_counts(valid)), series(6))
    assert_equal_where_valid(found, naive_logits(model, ids, scores, valid=valid), valid)


def test_randomized_positions_increase_and_stay_in_range() -> None:
    scheme = lively_model("randomized", options={"range": 300}).scheme
    for count in (1, 100, 300):
        positions = scheme._positions(torch.arange(20), count)
        assert positions.shape == (20, count)
        assert (positions.diff(dim=1) > 0).all()
        assert positions.min() >= 0
        assert positions.max() < 300
    assert torch.equal(positions, torch.arange(300).expand(20, -1)), "the whole range leaves no choice"


def test_randomized_draws_every_subset_equally_often() -> None:
    scheme = lively_model("randomized", options={"range": 5}).scheme
    draws = 4000
    counts = Counter(tuple(row) for row in scheme._positions(torch.arange(draws), 2).tolist())
    assert len(counts) == 10
    # Chi-square with 9 degrees of freedom: beyond 40 once in 100,000.
    expected = draws / 10
    assert sum((n - expected) ** 2 / expected for n in counts.values()) < 40


def test_randomized_draws_anew_for_every_call_and_again_with_the_same_seed() -> None:
    model, ids = lively_model("randomized"), random_ids(1, 20)
    torch.manual_seed(1)
    first, second = model(ids), model(ids)
    torch.manual_seed(1)
    assert torch.equal(first, model(ids))
    assert not torch.allclose(first, second)


def test_randomized_refuses_more_tokens_than_positions() -> None:
    model = lively_model("randomized", options={"range": 10})
    model(random_ids(1, 10))
    with pytest.raises(cr.InputError, match="11 tokens need as many positions, the range has 10; raise option 'range'"):
        model(random_ids(1, 11))
