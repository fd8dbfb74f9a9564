"""The cache: what it stores and when that changes, growth, beams, rollback, and what it refuses."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import contentrope as cr
from contentrope.rotary import rotate, rotation_of
from contentrope.schemes import KNOW_MEMORY, READ_UNITS
from tests.support import ANCHORED, TERMINATOR, VARIANTS, VOCABULARY, lively_model, random_ids

TOLERANCE = 1e-12
BATCH, SEQ = 2, 17
MARKER = VOCABULARY - 1

Masks = dict[str, Tensor]

every_scheme = pytest.mark.parametrize("scheme", VARIANTS)


def at_once(model: cr.Transformer, ids: Tensor, masks: Masks | None = None) -> Tensor:
    torch.manual_seed(3)
    with torch.no_grad():
        return model(ids, **(masks or {}))


def new_cache(model: cr.Transformer, batch: int = BATCH, max_tokens: int | None = SEQ) -> cr.Cache:
    # As in at_once: the schemes that draw at random draw the same.
    torch.manual_seed(3)
    return model.new_cache(batch, max_tokens=max_tokens)


def columns(masks: Masks, begin: int, end: int) -> Masks:
    return {name: mask[:, begin:end] for name, mask in masks.items()}


def read(
    model: cr.Transformer, cache: cr.Cache, ids: Tensor, sizes: Sequence[int], masks: Masks | None = None
) -> Tensor:
    """Read the columns of ``ids`` that the cache has not read yet, in chunks."""
    parts, turn = [], 0
    while cache.length < ids.shape[1]:
        begin, end = cache.length, min(cache.length + sizes[turn % len(sizes)], ids.shape[1])
        parts.append(model(ids[:, begin:end], cache=cache, **columns(masks or {}, begin, end)))
        turn += 1
    return torch.cat(parts, dim=1)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


# --- What is stored ---


class Snapshot(NamedTuple):
    keys: Tensor  # (layers, batch, kv_heads, columns, head_dim)
    values: Tensor
    addressed: Tensor  # (batch, columns)
    storage: tuple[int, ...]


def snapshot(cache: cr.Cache) -> Snapshot:
    keys, values = (torch.stack(parts)[..., : cache.length, :].clone() for parts in (cache.keys, cache.values))
    storage = tuple(x.data_ptr() for x in (*cache.keys, *cache.values, cache.facts))
    return Snapshot(keys, values, cache.fact("addressed").bool().clone(), storage)


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
def test_stored_keys_are_local_keys_turned_by_the_remembered_address(scheme: str, pairs: Any) -> None:
    """The same columns in a cache whose unit never completes hold the local keys."""
    model = lively_model(scheme, rotary=cr.RotaryConfig(pairs=pairs))
    open_unit = torch.tensor([[3, 1, 4, 1, 5]])
    completed = torch.cat((open_unit, torch.tensor([[TERMINATOR]])), dim=1)
    local, addressed = new_cache(model, 1), new_cache(model, 1)
    model(open_unit, cache=local)
    model(completed, cache=addressed)
    turn = rotation_of(addressed.angles["turned"][:, :5])
    assert float(turn.sin.abs().max()) > 0.1
    for layer in range(model.config.layers):
        expected = rotate(local.keys[layer][:, :, :5].transpose(1, 2), turn, pairs).transpose(1, 2)
        close(addressed.keys[layer][:, :, :5], expected)
        close(addressed.values[layer][:, :, :5], local.values[layer][:, :, :5])
    assert local.fact("addressed").tolist() == [[0] * 5]
    assert addressed.fact("addressed").tolist() == [[1] * 6]


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
    if scheme in (*READ_UNITS, ANCHORED):
        assert cache.fact("unit").tolist() == [[0, 0, 0, 1, 1, 1]]
        assert cache.fact("local").tolist() == [[0, 0, 1, 0, 1, 2]]
        assert cache.fact("start").tolist() == [[0, 1, 1, 3, 3, 3]]
        assert cache.fact("closes").tolist() == [[0, 0, 1, 0, 0, 1]]


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


# --- Beams ---


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
    fresh.state = replace(fresh.state, seed=seeds)
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
    fresh.state = replace(fresh.state, seed=fresh.state.seed[index])
    close(found, read(model, fresh, ids[index], (SEQ,), after)[:, 8:])


# --- Rollback ---


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
    lengths = range(SEQ) if scheme in (*READ_UNITS, ANCHORED) else (0, 1, 8, SEQ - 1)
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


def test_rolled_back_keys_are_local_again() -> None:
    model = lively_model("content")
    ids = torch.tensor([[3, 1, TERMINATOR, 4, 1, 5, TERMINATOR]])
    cache, fresh = new_cache(model, 1), new_cache(model, 1)
    read(model, cache, ids, (7,))
    read(model, fresh, ids[:, :5], (5,))
    cache.truncate(5)
    assert cache.fact("addressed").tolist() == fresh.fact("addressed").tolist() == [[1, 1, 1, 0, 0]]
    for ours, theirs in zip(cache.keys, fresh.keys, strict=True):
        close(ours[:, :, :5], theirs[:, :, :5])


@every_scheme
@pytest.mark.parametrize("rollback_first", [True, False], ids=["then beams", "after beams"])
def test_rollbacks_and_beams_together(scheme: str, rollback_first: bool) -> None:
    """To the middle of a completed unit, which must be turned back by the address of its own row."""
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


# --- What is refused, and what survives it ---


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
        "no rows": (ids[0, 9:], {}, "ids must be integers of shape"),
        "floats": (one.double(), {}, "ids must be integers of shape"),
        "mask of another shape": (one, {"valid": torch.ones(BATCH, 2, dtype=torch.bool)}, "valid must be bool"),
        "mask of another dtype": (one, {"valid": torch.ones(BATCH, 1)}, "valid must be bool"),
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
    """Keys of the first layer are turned back, those of the others are not."""
    model = lively_model("content")
    ids = torch.tensor([[1, 2, 3, 4, 5, TERMINATOR]]).expand(BATCH, -1)
    cache = new_cache(model)
    read(model, cache, ids, (6,))
    turn_keys = cr.Cache.turn_keys

    def first_layer_only(self: cr.Cache, layer: int, begin: int, rotation: Any) -> None:
        if layer:
            raise KeyboardInterrupt
        turn_keys(self, layer, begin, rotation)

    monkeypatch.setattr(cr.Cache, "turn_keys", first_layer_only)
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


def test_caches_record_no_gradients() -> None:
    model, ids = lively_model("content"), random_ids(BATCH, SEQ)
    cache = new_cache(model)
    assert not model(ids, cache=cache).requires_grad
    assert not any(x.requires_grad for x in (*cache.keys, *cache.values, *cache.angles.values()))
