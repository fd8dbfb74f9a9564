"""What the cache refuses, and what survives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import contentrope as cr
from tests.cache.helpers import BATCH, MARKER, SEQ, Masks, at_once, close, every_scheme, new_cache, read, snapshot
from tests.support import KNOW_MEMORY, TERMINATOR, VOCABULARY, lively_model, random_ids


def started(model: cr.Transformer, ids: Tensor) -> cr.Cache:
    cache = new_cache(model)
    read(model, cache, ids[:, :9], (4, 1))
    return cache


def still_works(model: cr.Transformer, cache: cr.Cache, ids: Tensor) -> None:
    close(read(model, cache, ids, (1, 3)), at_once(model, ids)[:, 9:])


@every_scheme
def test_a_call_without_tokens_changes_nothing(scheme: str) -> None:
    model, ids = lively_model(scheme), random_ids(BATCH, SEQ)
    cache = new_cache(model)
    assert model(ids[:, :0], cache=cache).shape == (BATCH, 0, VOCABULARY)
    read(model, cache, ids[:, :9], (4, 1))
    before, state = snapshot(cache), cache.state
    assert model(ids[:, :0], cache=cache, valid=torch.ones(BATCH, 0, dtype=torch.bool)).shape == (BATCH, 0, VOCABULARY)
    assert cache.length == 9
    assert cache.state is state
    assert torch.equal(snapshot(cache).keys, before.keys)
    still_works(model, cache, ids)


def bad_calls(ids: Tensor) -> dict[str, tuple[Tensor, Masks, str]]:
    one = ids[:, 9:10]
    return {
        "id too large": (one + VOCABULARY, {}, f"outside the vocabulary of {VOCABULARY}"),
        "negative id": (one - VOCABULARY, {}, f"outside the vocabulary of {VOCABULARY}"),
        "no rows": (ids[0, 9:], {}, "ids has shape"),
        "floats": (one.double(), {}, "ids has dtype"),
        "mask of another shape": (one, {"valid": torch.ones(BATCH, 2, dtype=torch.bool)}, "valid has shape"),
        "mask of another dtype": (one, {"valid": torch.ones(BATCH, 1)}, "valid has dtype"),
    }


@every_scheme
@pytest.mark.parametrize("name", bad_calls(random_ids(BATCH, SEQ)))
def test_bad_input_leaves_the_cache_usable(scheme: str, name: str) -> None:
    model, ids = lively_model(scheme), random_ids(BATCH, SEQ)
    cache = started(model, ids)
    tokens, masks, message = bad_calls(ids)[name]
    with pytest.raises(cr.InputError, match=message):
        model(tokens, cache=cache, **masks)
    still_works(model, cache, ids)


@pytest.mark.parametrize("scheme", KNOW_MEMORY)
def test_two_kinds_of_marks_leave_the_cache_usable(scheme: str) -> None:
    """Found out by the segmenter, inside the call but before anything is written."""
    model, ids = lively_model(scheme, reader=(MARKER,)), random_ids(BATCH, SEQ)
    cache = started(model, ids)
    with pytest.raises(cr.InputError, match="both mark memory units"):
        model(ids[:, 9:], memory=torch.ones(BATCH, SEQ - 9, dtype=torch.bool), cache=cache)
    still_works(model, cache, ids)


def test_too_many_randomized_positions_leave_the_cache_usable() -> None:
    model, ids = lively_model("randomized"), random_ids(BATCH, SEQ)
    cache = started(model, ids)
    with pytest.raises(cr.CacheError, match=r"made for 17 tokens, 18 are needed: new_cache\(max_tokens=18\)"):
        model(random_ids(BATCH, SEQ - 8), cache=cache)
    still_works(model, cache, ids)


def test_addresses_that_are_not_finite_leave_the_cache_usable() -> None:
    model, ids = lively_model("content"), random_ids(BATCH, SEQ)
    cache = started(model, ids)
    weight = model.scheme.address.project.weight
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(torch.nan)
    with pytest.raises(cr.InputError, match="addresses of row 0, token 0 are not finite"):
        model(ids[:, 9:], cache=cache)
    with torch.no_grad():
        weight.copy_(kept)
    still_works(model, cache, ids)


@every_scheme
def test_a_cache_of_another_model_is_refused(scheme: str) -> None:
    model, ids = lively_model(scheme), random_ids(BATCH, SEQ)
    cache = started(model, ids)
    with pytest.raises(cr.CacheError, match=r"belongs to another model \(fingerprint"):
        lively_model(scheme)(ids[:, 9:], cache=cache)
    with pytest.raises(cr.CacheError, match="layers: 2 here, 3 in the cache"):
        lively_model(scheme, layers=2)(ids[:, 9:], cache=cache)
    still_works(model, cache, ids)


def test_a_cache_of_another_dtype_is_refused() -> None:
    model, ids = lively_model("content"), random_ids(BATCH, SEQ)
    cache = started(model, ids)
    model.float()
    with pytest.raises(cr.CacheError, match=r"dtype: torch.float32 here, torch.float64 in the cache"):
        model(ids[:, 9:], cache=cache)
    # Weights rounded to float32 and back are other weights: only that the cache is taken again can be asked.
    model.double()
    assert model(ids[:, 9:], cache=cache).shape == (BATCH, SEQ - 9, VOCABULARY)


@every_scheme
def test_another_batch_size_is_refused(scheme: str) -> None:
    model, ids = lively_model(scheme), random_ids(BATCH, SEQ)
    cache = started(model, ids)
    with pytest.raises(cr.CacheError, match="the cache has 2 rows, ids 3"):
        model(random_ids(3, 4), cache=cache)
    still_works(model, cache, ids)


@pytest.mark.parametrize("length", [-1, 10, 100])
def test_bad_truncations_are_refused(length: int) -> None:
    model, ids = lively_model("content"), random_ids(BATCH, SEQ)
    cache = started(model, ids)
    with pytest.raises(cr.InputError, match=f"cannot truncate to {length} columns: the cache holds 9"):
        cache.truncate(length)
    still_works(model, cache, ids)


@pytest.mark.parametrize(
    "index",
    [
        torch.tensor([0, 2]),
        torch.tensor([-1, 0]),
        torch.tensor([[0, 1]]),
        torch.tensor(0),
        torch.tensor([True, False]),
        torch.tensor([0.0, 1.0]),
    ],
    ids=["too large", "negative", "two-dimensional", "a number", "mask", "floats"],
)
def test_bad_reorders_are_refused(index: Tensor) -> None:
    model, ids = lively_model("content"), random_ids(BATCH, SEQ)
    cache = started(model, ids)
    with pytest.raises(cr.InputError, match=r"rows .* in 0..1"):
        cache.reorder(index)
    still_works(model, cache, ids)


@pytest.mark.parametrize("arguments", [{"batch_size": -1}, {"batch_size": 1, "max_tokens": 0}], ids=str)
def test_caches_of_no_size_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(cr.InputError, match="is too small"):
        lively_model("content").new_cache(**arguments)


@every_scheme
@pytest.mark.parametrize("part", ["second layer", "head"])
def test_a_cache_whose_call_broke_off_is_refused_ever_after(scheme: str, part: str) -> None:
    """Some layers have read the tokens and others not; going on would give wrong logits without a word."""
    model, ids = lively_model(scheme), random_ids(BATCH, SEQ)
    cache = started(model, ids)

    def break_off(*_: Any) -> None:
        raise KeyboardInterrupt

    module = model.blocks[1] if part == "second layer" else model.head
    handle = module.register_forward_pre_hook(break_off)
    with pytest.raises(KeyboardInterrupt):
        model(ids[:, 9:], cache=cache)
    handle.remove()
    check_refused_ever_after(model, cache, ids)
    # The model itself is none the worse.
    fresh = new_cache(model)
    close(read(model, fresh, ids, (4, 1)), at_once(model, ids))


def check_refused_ever_after(model: cr.Transformer, cache: cr.Cache, ids: Tensor) -> None:
    later: list[Callable[[], Any]] = [
        lambda: model(ids[:, cache.length :], cache=cache),
        lambda: cache.truncate(3),
        lambda: cache.reorder(torch.tensor([0, 1])),
    ]
    for call in later:
        with pytest.raises(cr.CacheError, match="an earlier call with this cache did not finish"):
            call()


def test_a_rollback_that_broke_off_is_refused_ever_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of the first layer are rotated back, those of the others are not."""
    model = lively_model("content")
    ids = torch.tensor([[1, 2, 3, 4, 5, TERMINATOR]]).expand(BATCH, -1)
    cache = new_cache(model)
    read(model, cache, ids, (6,))
    rotate_keys = cr.Cache.rotate_keys

    def first_layer_only(self: cr.Cache, begin: int, rotation: Any) -> None:
        rotate_keys(self, begin, rotation, layer=0)
        raise KeyboardInterrupt

    monkeypatch.setattr(cr.Cache, "rotate_keys", first_layer_only)
    with pytest.raises(KeyboardInterrupt):
        cache.truncate(4)
    monkeypatch.undo()
    check_refused_ever_after(model, cache, ids)


def test_a_reorder_that_broke_off_is_refused_ever_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are in the new order, the state is not: as when memory runs out."""
    model, ids = lively_model("content"), random_ids(BATCH, SEQ)
    cache = started(model, ids)

    def out_of_memory(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(type(cache.state), "reorder", out_of_memory)
    with pytest.raises(MemoryError):
        cache.reorder(torch.tensor([1, 0]))
    monkeypatch.undo()
    check_refused_ever_after(model, cache, ids)
