"""What competition adds to the scores of single tokens is kept while their unit is open, and never longer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contentrope.attention.pairs import ROOM
from contentrope.context import addressed
from tests.cache.helpers import at_once, close, new_cache, read
from tests.support import LEARNED, TERMINATOR, VOCABULARY, lively_model, random_ids

EXPONENTS: dict[str, dict[str, Any]] = {"fixed": {"competition": 2.0}, "learned": LEARNED}
every_exponent = pytest.mark.parametrize("options", EXPONENTS.values(), ids=EXPONENTS)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of every bias that is made, how many columns it has."""
    columns: list[int] = []
    make = addressed._single_bias

    def noted(*given: Any) -> Tensor:
        columns.append(given[-1])
        return make(*given)

    monkeypatch.setattr(addressed, "_single_bias", noted)
    return columns


@every_exponent
def test_a_bias_is_made_once_for_a_unit(
    options: dict[str, Any], made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = lively_model("content", max_unit_length=64, options=options)
    exponents = model.scheme.reader.competition
    asked: list[int] = []
    of = exponents.of
    monkeypatch.setattr(exponents, "of", lambda layer: asked.append(layer) or of(layer))
    kinds = model.config.layers if "learn_competition" in options else 1
    ids = torch.randint(1, VOCABULARY, (1, 60))
    ids[:, [1, 2, 11, 30, 31]] = TERMINATOR
    close(read(model, new_cache(model, 1), ids, (1,)), at_once(model, ids))
    assert len(made) == 6 * kinds
    assert len(asked) == model.config.layers + len(made)  # prefill asks in every layer


def test_a_unit_that_outgrows_its_bias_gets_a_longer_one(made: list[int]) -> None:
    model = lively_model("content", max_unit_length=1000, options=EXPONENTS["fixed"])
    ids = torch.randint(1, VOCABULARY, (1, 3 * ROOM))
    ids[:, [1, 2, 3]] = TERMINATOR  # with one unit before them, tokens have a bias of zero
    close(read(model, new_cache(model, 1), ids, (1,)), at_once(model, ids))
    assert len(made) == 6
    assert made == sorted(made)


def test_rows_share_a_bias_until_the_first_of_them_ends_its_unit(made: list[int]) -> None:
    model = lively_model("content", max_unit_length=64, options=EXPONENTS["fixed"])
    ids = torch.randint(1, VOCABULARY, (3, 40))
    ids[:, :3] = ids[0, 10] = ids[1, [10, 20]] = ids[2, 35] = TERMINATOR
    close(read(model, new_cache(model, 3), ids, (1,)), at_once(model, ids))
    assert len(made) == 7  # three units of one token, and four since


@every_exponent
def test_padding_and_memory_units_keep_none(options: dict[str, Any]) -> None:
    model, ids = lively_model("content", options=options), random_ids(2, 20)
    for mask in ("valid", "memory"):
        cache = new_cache(model, 2)
        for t in range(20):
            model(ids[:, t : t + 1], cache=cache, **{mask: torch.ones(2, 1, dtype=torch.bool)})
            assert not cache.state.biases


@every_exponent
def test_rows_that_change_places_take_no_bias_along_that_is_anothers(options: dict[str, Any]) -> None:
    model, ids = lively_model("content", max_unit_length=64, options=options), torch.randint(1, VOCABULARY, (2, 24))
    ids[0, [1, 2, 3]] = ids[1, [1, 2, 5, 9]] = TERMINATOR
    cache, swapped = new_cache(model, 2), torch.tensor([1, 0])
    read(model, cache, ids[:, :16], (1,))
    assert cache.state.biases
    cache.reorder(swapped)
    close(read(model, cache, ids[swapped], (1,)), at_once(model, ids[swapped])[:, 16:])


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("single"), st.integers(1, 9)),
        st.tuples(st.just("chunk"), st.integers(2, 6)),
        st.tuples(st.just("truncate"), st.integers(1, 9)),
        st.tuples(st.just("reorder"), st.integers(0, 3)),
    ),
    min_size=2,
    max_size=6,
)


@given(options=st.sampled_from(list(EXPONENTS.values())), steps=STEPS, seed=st.integers(0, 99))
def test_whatever_is_done_to_a_cache_logits_are_those_of_the_whole(
    options: dict[str, Any], steps: list[tuple[str, int]], seed: int
) -> None:
    model, text = lively_model("content", options=options), random_ids(2, 120, seed=seed, end_rate=0.2)
    cache, at = new_cache(model, 2), 0
    for what, size in steps:
        if what == "truncate":
            at = max(0, at - size)
            cache.truncate(at)
            # Read on otherwise than before: what was kept for the forgotten unit must not serve.
            text = torch.cat((text[:, :at], random_ids(2, 120 - at, seed=seed + size, end_rate=0.4)), dim=1)
        elif what == "reorder":
            rows = torch.tensor([size // 2, size % 2])
            cache.reorder(rows)
            text = text[rows]
        else:
            so_far = text[:, : at + size]
            close(read(model, cache, so_far, (1 if what == "single" else size,)), at_once(model, so_far)[:, at:])
            at += size
