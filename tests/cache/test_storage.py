"""What the cache stores and when that changes, and how it grows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch

import contentrope as cr
from contentrope.rotary import rotate, rotation_of
from tests.cache.helpers import BATCH, SEQ, at_once, close, every_scheme, new_cache, read, snapshot
from tests.support import READ_UNITS, TERMINATOR, lively_model, random_ids


@pytest.mark.parametrize("scheme", ["content", "random"])
@pytest.mark.parametrize("backend", ["reference", "tiled"])
@pytest.mark.parametrize("sizes", [(1,), (3, 1, 5)], ids=["single", "mixed"])
@pytest.mark.parametrize(
    "settings", [{}, {"kv_heads": 1, "rotary": cr.RotaryConfig(pairs="interleaved")}], ids=["half", "interleaved"]
)
def test_keys_are_readdressed_once_in_place_and_values_never_change(
    scheme: str, backend: str, sizes: Sequence[int], settings: dict[str, Any]
) -> None:
    model, ids = lively_model(scheme, backend=backend, **settings), random_ids(BATCH, SEQ)
    cache = new_cache(model)
    before, changes = snapshot(cache), torch.zeros(BATCH, SEQ, dtype=torch.int64)
    while cache.length < SEQ:
        size = sizes[cache.length % len(sizes)]
        model(ids[:, cache.length : cache.length + size], cache=cache)
        after, old = snapshot(cache), before.keys.shape[3]
        assert after.storage == before.storage
        assert torch.equal(after.values[..., :old, :], before.values)
        changed = (after.keys[..., :old, :] != before.keys).any(-1).any(2)
        completed = after.addressed[:, :old] & ~before.addressed
        # In every layer at once: exactly the keys whose unit was completed by this call.
        assert torch.equal(changed, completed.expand_as(changed))
        assert bool((before.addressed <= after.addressed[:, :old]).all())
        changes[:, :old] += completed
        before = after
    assert int(changes.max()) == 1
    assert bool(changes.any(1).all())


@pytest.mark.parametrize("scheme", ["content", "random"])
@pytest.mark.parametrize("pairs", ["half", "interleaved"])
def test_stored_keys_are_local_keys_rotated_by_the_stored_address(scheme: str, pairs: Any) -> None:
    """The same columns in a cache whose unit never completes hold the local keys."""
    model = lively_model(scheme, rotary=cr.RotaryConfig(pairs=pairs))
    open_unit = torch.tensor([[3, 1, 4, 1, 5]])
    completed = torch.cat((open_unit, torch.tensor([[TERMINATOR]])), dim=1)
    local, addressed = new_cache(model, 1), new_cache(model, 1)
    model(open_unit, cache=local)
    model(completed, cache=addressed)
    rotation = rotation_of(addressed.columns.angles[0][:, :5])
    assert float(rotation.sin.abs().max()) > 0.1
    for layer in range(model.config.layers):
        expected = rotate(local.keys[layer][:, :, :5].transpose(1, 2), rotation, pairs).transpose(1, 2)
        close(addressed.keys[layer][:, :, :5], expected)
        close(addressed.values[layer][:, :, :5], local.values[layer][:, :, :5])
    assert local.columns.rotated.tolist() == [[0] * 5]
    assert addressed.columns.rotated.tolist() == [[1] * 6]


@every_scheme
def test_facts_of_every_column(scheme: str) -> None:
    model = lively_model(scheme, max_unit_length=3)
    cache = new_cache(model, 1)
    valid = torch.tensor([[False, True, True, True, True, True]])
    ids = torch.tensor([[9, 4, TERMINATOR, 5, 6, 7]])
    read(model, cache, ids, (2, 1), {"valid": valid})
    assert cache.fact("ids").tolist() == ids.tolist()
    assert cache.fact("valid").bool().tolist() == valid.tolist()
    assert cache.state.tokens.tolist() == [5]
    if scheme in READ_UNITS:
        assert cache.fact("unit").tolist() == [[0, 0, 0, 1, 1, 1]]
        assert cache.fact("local").tolist() == [[0, 0, 1, 0, 1, 2]]
        assert cache.fact("start").tolist() == [[0, 1, 1, 3, 3, 3]]
        assert cache.fact("closes").tolist() == [[0, 0, 1, 0, 0, 1]]


def test_caches_record_no_gradients() -> None:
    model, ids = lively_model("content"), random_ids(BATCH, SEQ)
    cache = new_cache(model)
    assert not model(ids, cache=cache).requires_grad
    assert cache.columns.angles
    assert not any(x.requires_grad for x in (*cache.keys, *cache.values, *cache.columns.angles))


# --- Growth ---


@pytest.mark.parametrize("scheme", ["content", "random", "local", "rope", "bipe"])
def test_room_doubles_so_that_reallocations_are_logarithmic(scheme: str) -> None:
    steps = 130
    model = lively_model(scheme, layers=1, dim=8, heads=1)
    ids = random_ids(1, steps)
    cache = new_cache(model, 1, max_tokens=1)
    addresses, capacities, parts = [], [cache.capacity], []
    for token in ids.split(1, dim=1):
        parts.append(model(token, cache=cache))
        addresses.append(cache.keys[0].data_ptr())
        capacities.append(cache.capacity)
    assert sorted(set(capacities)) == [2**n for n in range(9)]
    moves = sum(a != b for a, b in pairwise(addresses))
    assert moves <= math.ceil(math.log2(steps))
    close(torch.cat(parts, dim=1), at_once(model, ids))


def test_reserved_room_is_never_outgrown() -> None:
    model, ids = lively_model("content"), random_ids(BATCH, SEQ)
    cache = new_cache(model)
    before = snapshot(cache).storage
    read(model, cache, ids, (1,))
    assert snapshot(cache).storage == before
    assert cache.capacity == SEQ


def test_one_large_chunk_makes_room_for_itself() -> None:
    model, ids = lively_model("content"), random_ids(BATCH, 40)
    cache = new_cache(model, max_tokens=3)
    close(read(model, cache, ids, (2, 30)), at_once(model, ids))
    assert cache.capacity >= 40
