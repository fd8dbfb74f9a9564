"""Rolling the cache back to fewer columns."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import contentrope as cr
from tests.cache.helpers import BATCH, MARKER, SEQ, Masks, at_once, close, every_scheme, new_cache, read
from tests.support import KNOW_MEMORY, READ_UNITS, TERMINATOR, VARIANTS, lively_model, random_ids


def rollback_masks(kind: str) -> Masks:
    memory = torch.rand(BATCH, SEQ, generator=torch.Generator().manual_seed(2)) < 0.5
    valid = torch.rand(BATCH, SEQ, generator=torch.Generator().manual_seed(4)) < 0.7
    left = (torch.arange(SEQ) >= 4 * torch.arange(BATCH)[:, None]).expand(BATCH, SEQ)
    return {
        "plain": {},
        "left padding": {"valid": left},
        "ragged": {"valid": valid},
        "memory": {"memory": memory},
        "memory and padding": {"memory": memory, "valid": valid},
    }[kind]


def go_on_elsewhere(
    model: cr.Transformer, cache: cr.Cache, text: Tensor, length: int, masks: Masks, sizes: Sequence[int]
) -> Tensor:
    """Roll back to this length and read another continuation; the logits must be those of a fresh run."""
    other = random_ids(BATCH, SEQ, seed=100 + length)
    edited = torch.cat((text[:, :length], other[:, length:]), dim=1)
    cache.truncate(length)
    assert cache.length == length
    close(read(model, cache, edited, sizes, masks), at_once(model, edited, masks)[:, length:])
    return edited


def check_rollback(
    model: cr.Transformer, ids: Tensor, masks: Masks, sizes: Sequence[int], lengths: Sequence[int] = range(SEQ)
) -> None:
    cache = new_cache(model)
    read(model, cache, ids, sizes, masks)
    for length in lengths:
        go_on_elsewhere(model, copy.deepcopy(cache), ids, length, masks, sizes)


@pytest.mark.parametrize(
    ("scheme", "kind"),
    [
        (scheme, kind)
        for scheme in VARIANTS
        for kind in ("plain", "left padding", "ragged", "memory", "memory and padding")
        if scheme in KNOW_MEMORY or "memory" not in kind
    ],
)
@pytest.mark.parametrize("sizes", [(1,), (5, 1, 3)], ids=["single", "mixed"])
def test_rolling_back_to_any_length_forgets_the_rest(scheme: str, kind: str, sizes: Sequence[int]) -> None:
    """Through open and completed units of both rows; a completed one may be open again."""
    # A scheme without units has no other places than these.
    lengths = range(SEQ) if scheme in READ_UNITS else (0, 1, 8, SEQ - 1)
    model = lively_model(scheme, layers=2)
    check_rollback(model, random_ids(BATCH, SEQ), rollback_masks(kind), sizes, lengths)


@pytest.mark.parametrize(
    ("scheme", "backend"),
    [*((name, "tiled") for name in VARIANTS), *((name, "reference") for name in KNOW_MEMORY)],
)
def test_several_rollbacks_in_a_row(scheme: str, backend: str) -> None:
    model, text = lively_model(scheme, backend=backend), random_ids(BATCH, SEQ)
    cache = new_cache(model)
    read(model, cache, text, (4, 1))
    for length in (15, 14, 9, 9, 2, 16, 0, 7):
        text = go_on_elsewhere(model, cache, text, length, {}, (4, 1))


@pytest.mark.parametrize("scheme", KNOW_MEMORY)
@pytest.mark.parametrize("kind", ["plain", "memory and padding"])
def test_rollbacks_without_reading_between_them(scheme: str, kind: str) -> None:
    model, ids, masks = lively_model(scheme), random_ids(BATCH, SEQ), rollback_masks(kind)
    cache = new_cache(model)
    read(model, cache, ids, (6, 1), masks)
    for length in (16, 13, 12, 8, 8, 5):
        cache.truncate(length)
    close(read(model, cache, ids, (1, 4), masks), at_once(model, ids, masks)[:, 5:])


def test_rolling_back_past_a_marker_makes_memory_of_what_follows() -> None:
    model = lively_model("content", reader=(MARKER,))
    ids = random_ids(BATCH, SEQ)
    ids[ids == MARKER] = 1
    ids[0, 6], ids[1, 10] = MARKER, MARKER
    check_rollback(model, ids, {}, (4, 1))


def test_rolling_back_the_callers_ends() -> None:
    """Ends that the ids do not tell: only the cache remembers them."""
    model, ids = lively_model("content"), random_ids(BATCH, SEQ)
    ends = torch.rand(BATCH, SEQ, generator=torch.Generator().manual_seed(6)) < 0.3
    check_rollback(model, ids, {"ends": ends}, (3, 1, 1))


def test_one_row_that_was_decoded_is_rolled_back_into_any_unit() -> None:
    """Where a single token ends the only unit, all keys from where it began are rotated, without a mask."""
    model, ids = lively_model("content", max_unit_length=6), random_ids(1, SEQ)
    for length in range(1, SEQ):
        cache, fresh = new_cache(model, 1), new_cache(model, 1)
        read(model, cache, ids, (1,))
        read(model, fresh, ids[:, :length], (1,))
        cache.truncate(length)
        assert torch.equal(cache.columns.rotated, fresh.columns.rotated)
        for ours, theirs in zip(cache.keys, fresh.keys, strict=True):
            close(ours[:, :, :length], theirs[:, :, :length])


def test_rolled_back_keys_are_local_again() -> None:
    model = lively_model("content")
    ids = torch.tensor([[3, 1, TERMINATOR, 4, 1, 5, TERMINATOR]])
    cache, fresh = new_cache(model, 1), new_cache(model, 1)
    read(model, cache, ids, (7,))
    read(model, fresh, ids[:, :5], (5,))
    cache.truncate(5)
    assert cache.columns.rotated.tolist() == fresh.columns.rotated.tolist() == [[1, 1, 1, 0, 0]]
    for ours, theirs in zip(cache.keys, fresh.keys, strict=True):
        close(ours[:, :, :5], theirs[:, :, :5])


@every_scheme
@pytest.mark.parametrize("rollback_first", [True, False], ids=["then beams", "after beams"])
def test_rollbacks_and_beams_together(scheme: str, rollback_first: bool) -> None:
    """To the middle of a completed unit, which must be rotated back by the address of its own row."""
    model, index = lively_model(scheme), torch.tensor([1, 1, 0])
    ids = random_ids(BATCH, SEQ)
    ids[:, 6:11] = torch.tensor([[TERMINATOR, 3, 4, 5, TERMINATOR], [TERMINATOR, 6, 7, 8, TERMINATOR]])
    cache, fresh = new_cache(model), new_cache(model)
    read(model, cache, ids, (7, 1))
    if rollback_first:
        cache.truncate(9)
    cache.reorder(index)
    cache.truncate(9)
    fresh.reorder(index)
    close(read(model, cache, ids[index], (1, 3)), read(model, fresh, ids[index], (SEQ,))[:, 9:])
