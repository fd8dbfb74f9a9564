"""What competition takes from the scores of single tokens is kept while their unit is open, and never longer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

import contentrope.hf as chf
from contentrope.attention.pairs import ROOM
from contentrope.hf import masks
from contentrope.hf.state import columns_layer
from tests.hf.models import TERMINATOR, VOCABULARY, enliven, logits, tiny
from tests.hf.test_cache import in_chunks, same

exponents = pytest.mark.parametrize("learn", [False, True], ids=["fixed", "learned"])
TOKENS = (1,)


def competing(learn: bool) -> Any:
    """Units that may be longer than what a mask has room for."""
    model = tiny("llama", max_position_embeddings=512)
    chf.attach(model, units={TERMINATOR}, max_length=300, competition=1.5, learn_competition=learn, check=False)
    return enliven(model)


def text(length: int, ends: list[list[int]]) -> Tensor:
    """Rows that end units at these columns alone."""
    ids = torch.randint(4, VOCABULARY, (len(ends), length), generator=torch.Generator().manual_seed(0))
    for row, columns in enumerate(ends):
        ids[row, columns] = TERMINATOR
    return ids


def kept_by(cache: Any, model: Any) -> dict[Any, Tensor]:
    columns = columns_layer(cache, model.config.num_hidden_layers, {}).columns
    assert columns is not None
    return columns.state.biases


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of every mask of a single token that is made, how many columns it has."""
    columns: list[int] = []
    take = masks._taken

    def noted(frame: Any, scores: masks.Scores, competition: Any) -> Tensor:
        if frame.units.seq_length == 1:
            columns.append(scores.keys)
        return take(frame, scores, competition)

    monkeypatch.setattr(masks, "_taken", noted)
    return columns


@exponents
def test_a_mask_is_made_once_for_a_unit(learn: bool, made: list[int]) -> None:
    model, ids = competing(learn), text(60, [[1, 2, 11, 30, 31]])
    cache = DynamicCache(config=model.config)
    same(in_chunks(model, ids, (5, *[1] * 55), cache), logits(model, ids, use_cache=False))
    assert len(made) == 4 * (model.config.num_hidden_layers if learn else 1)


def test_a_unit_that_outgrows_its_mask_gets_a_longer_one(made: list[int]) -> None:
    model, ids = competing(learn=False), text(3 * ROOM, [[1, 2, 3]])
    same(in_chunks(model, ids, TOKENS, DynamicCache(config=model.config)), logits(model, ids, use_cache=False))
    assert made == sorted(made)
    assert (
        len(made) == 7
    )  # of the first token, alone; of three that begin short units; of the last unit, twice outgrown


@exponents
def test_rows_that_change_places_and_rollbacks_keep_none(learn: bool) -> None:
    model, ids = competing(learn), text(40, [[1, 3], [1, 2, 5, 9]])
    cache = DynamicCache(config=model.config)
    in_chunks(model, ids[:, :16], TOKENS, cache)
    assert kept_by(cache, model)
    swapped = torch.tensor([1, 0])
    cache.reorder_cache(swapped)
    assert not kept_by(cache, model)
    whole = logits(model, ids[swapped], use_cache=False)
    same(in_chunks(model, ids[swapped][:, 16:30], TOKENS, cache), whole[:, 16:30])
    assert kept_by(cache, model)
    cache.crop(-22)  # into units that are completed since
    assert not kept_by(cache, model)
    same(in_chunks(model, ids[swapped][:, 8:], TOKENS, cache), whole[:, 8:])


def test_another_exponent_has_a_mask_of_its_own() -> None:
    model, ids = competing(learn=False), text(20, [[1, 2, 3]])
    cache, adapter = DynamicCache(config=model.config), chf.adapter_of(model)
    in_chunks(model, ids[:, :10], TOKENS, cache)
    adapter.set(competition=0.25)
    found = in_chunks(model, ids[:, 10:11], TOKENS, cache)
    fresh = DynamicCache(config=model.config)
    adapter.set(competition=1.5)
    in_chunks(model, ids[:, :10], (10,), fresh)
    adapter.set(competition=0.25)
    same(found, in_chunks(model, ids[:, 10:11], TOKENS, fresh))


@exponents
def test_padding_is_in_no_mask_that_is_kept(learn: bool) -> None:
    model, ids = competing(learn), text(20, [[1, 2, 3], [8, 9, 12]])
    mask = torch.arange(20) >= torch.tensor([[0], [6]])
    cache = DynamicCache(config=model.config)
    found = in_chunks(model, ids, TOKENS, cache, attention_mask=mask)
    expected = logits(model, ids, attention_mask=mask, use_cache=False)
    same(found[mask], expected[mask])
