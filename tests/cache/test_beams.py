"""Reordered rows of the cache, as beams need them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.cache.helpers import SEQ, close, every_scheme, new_cache, read
from tests.support import KNOW_MEMORY, TERMINATOR, lively_model, random_ids


@every_scheme
@pytest.mark.parametrize("order", [[1, 0, 2], [2, 2, 0], [0], [1, 1, 1, 0, 2]], ids=str)
@pytest.mark.parametrize("cut", [4, 13])
def test_reordered_rows_go_on_as_if_they_had_always_been_there(scheme: str, order: list[int], cut: int) -> None:
    model, index = lively_model(scheme), torch.tensor(order)
    prefix, rest = random_ids(3, cut), random_ids(len(order), SEQ - cut, seed=1)
    cache = new_cache(model, 3)
    read(model, cache, prefix, (3, 1))
    cache.reorder(index)
    found = read(model, cache, torch.cat((prefix[index], rest), dim=1), (1, 2))
    fresh = new_cache(model, 3)
    # Beams that come from one row keep its random draws.
    seeds = fresh.state.seed[index]
    fresh = new_cache(model, len(order))
    fresh.columns.state = replace(fresh.state, seed=seeds)
    expected = read(model, fresh, torch.cat((prefix[index], rest), dim=1), (SEQ,))
    close(found, expected[:, cut:])


@every_scheme
def test_beams_keep_their_padding_and_marks(scheme: str) -> None:
    model, index = lively_model(scheme), torch.tensor([2, 0, 2])
    ids = random_ids(3, SEQ)
    masks = {"valid": torch.arange(SEQ) >= 2 * torch.arange(3)[:, None]}
    if scheme in KNOW_MEMORY:
        masks["memory"] = ids % 2 == 0
    cache = new_cache(model, 3)
    read(model, cache, ids[:, :8], (5, 1), masks)
    cache.reorder(index)
    after = {name: mask[index] for name, mask in masks.items()}
    found = read(model, cache, ids[index], (1, 3), after)
    fresh = new_cache(model, 3)
    fresh.columns.state = replace(fresh.state, seed=fresh.state.seed[index])
    close(found, read(model, fresh, ids[index], (SEQ,), after)[:, 8:])


@pytest.mark.parametrize("scheme", KNOW_MEMORY)
@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_beam_kept_alone_ends_its_own_unit_and_no_other_columns(scheme: str, row: int) -> None:
    """The rows' units began at different columns, and there is a host copy of where the first of them did."""
    model = lively_model(scheme, max_unit_length=7)
    ids = torch.full((3, SEQ), 5)
    ids[0, 1] = ids[1, 3] = ids[2, 5] = ids[1:, [8, 13]] = TERMINATOR
    cache, fresh, kept = new_cache(model, 3), new_cache(model, 3), torch.tensor([row])
    model(ids[:, :7], cache=cache)
    model(ids[:, 7:8], cache=cache)
    for each in (cache, fresh):
        each.reorder(kept)
    close(read(model, cache, ids[kept], (1,)), read(model, fresh, ids[kept], (SEQ,))[:, 8:])
