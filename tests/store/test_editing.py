"""However a set was put together, the cache has the bits of a fresh one."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest
import torch

import contentrope as cr
from contentrope.store import SetCache, UnitStore
from contentrope.store.precision import PRECISIONS
from tests.store.helpers import DOCUMENTS, LONG, QUESTION, asked, model_for, same_bits


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("window", [0, 6])
def test_no_order_of_insertion_changes_a_bit(window: int, precision: str, tmp_path: Path) -> None:
    model = model_for(window=window, dtype=torch.float32)
    store = UnitStore(tmp_path, model, precision=precision)
    keys = store.add([*DOCUMENTS, LONG])
    expected = asked(model, store.cache(keys))
    for seed in range(4):
        shuffled = random.Random(seed).sample(keys, len(keys))
        cache = store.cache(shuffled[:1])
        for key in shuffled[1:]:
            cache.insert(key)
        assert torch.equal(asked(model, cache), expected)
        assert torch.equal(asked(model, store.cache([*shuffled, shuffled[0]])), expected), "a set has no duplicates"
    assert not torch.equal(asked(model, store.cache(keys[1:])), expected)


@pytest.mark.parametrize(
    ("name", "window", "edits", "precision"),
    [("llama", 0, 1000, "model"), ("llama", 6, 60, "int8"), ("gemma3", 0, 60, "int8"), ("gemma3", 6, 60, "model")],
)
def test_after_any_edits_a_cache_is_a_fresh_one(
    name: str, window: int, edits: int, precision: str, tmp_path: Path
) -> None:
    model = model_for(name, window=window, dtype=torch.float32)
    store = UnitStore(tmp_path, model, precision=precision)
    keys = store.add([[first, second, 3] for first in range(7, 14) for second in range(20, 23)] + [LONG])
    draw, cache, there = random.Random(0), store.cache(keys[:5]), set(keys[:5])
    for step in range(edits):
        absent = sorted(set(keys) - there)
        kind = draw.choice(["insert", "remove", "replace"])
        if kind == "insert" and absent:
            new = draw.sample(absent, min(len(absent), draw.randint(1, 3)))
            cache.insert(new)
            there.update(new)
        elif kind == "remove" and there:
            gone = draw.choice(sorted(there))
            cache.remove(gone)
            there.remove(gone)
        elif absent and there:
            gone, new_one = draw.choice(sorted(there)), draw.choice(absent)
            cache.replace(gone, new_one)
            there = there - {gone} | {new_one}
        assert set(cache.documents) == there
        if step % 50 == 49 or step == edits - 1:
            fresh = store.cache(sorted(there, reverse=True))
            assert same_bits(cache, fresh)
            assert torch.equal(asked(model, cache), asked(model, fresh))
            cache.rewind()
            assert same_bits(cache, store.cache(there))


def test_an_edit_computes_no_unit_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_for()
    store = UnitStore(tmp_path, model)
    keys = store.add(DOCUMENTS)
    other = store.add([[50, 51]])[0]
    cache = store.cache(keys)
    monkeypatch.setattr(type(model.model), "forward", lambda *_, **__: pytest.fail("the model was run"))
    read: list[list[str]] = []
    monkeypatch.setattr(store, "read", lambda units: read.append(list(units)) or store.catalog.read(units))
    cache.replace(keys[0], other)
    cache.remove(keys[1])
    assert read == [[other]], "what stays is not read from the store again"


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_read_question_must_be_forgotten_before_an_edit(name: str, tmp_path: Path) -> None:
    model = model_for(name)
    store = UnitStore(tmp_path, model)
    keys = store.add(DOCUMENTS)
    cache = store.cache(keys[:3])
    first = asked(model, cache)
    for edit in (lambda: cache.insert(keys[3]), lambda: cache.remove(keys[0]), lambda: store.ask([9], cache)):
        with pytest.raises(cr.CacheError, match="rewind"):
            edit()
    cache.rewind()
    assert torch.equal(asked(model, cache), first)
    cache.rewind()
    cache.insert(keys[3])
    assert torch.equal(asked(model, cache), asked(model, store.cache(keys[:4])))


def test_what_is_no_document_of_the_cache_is_refused(tmp_path: Path) -> None:
    store = UnitStore(tmp_path, model_for())
    keys = store.add(DOCUMENTS)
    cache = store.cache(keys[:2])
    before = store.cache(keys[:2])
    for edit in (
        lambda: cache.remove(keys[2]),
        lambda: cache.remove([keys[0], keys[0]]),
        lambda: cache.replace(keys[2], keys[3]),
        lambda: cache.insert("0" * 64),
        lambda: cache.replace(keys[0], "0" * 64),
    ):
        with pytest.raises(cr.InputError, match="is no document of"):
            edit()
        assert same_bits(cache, before), "a refused edit changes nothing"
    with pytest.raises(cr.CacheError, match="one row"):
        store.caches([keys[:1], keys[1:]]).remove(keys[0])


def test_an_edit_that_fails_midway_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_for()
    store = UnitStore(tmp_path, model)
    keys = store.add(DOCUMENTS)
    cache = store.cache(keys[:2])

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(cache, "_note", fail)
        with pytest.raises(MemoryError):
            cache.insert(keys[2])
    for use in (lambda: asked(model, cache, QUESTION), cache.rewind):
        with pytest.raises(cr.CacheError, match="did not finish"):
            use()


def test_a_call_that_fails_is_rewound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_for()
    store = UnitStore(tmp_path, model)
    cache = store.cache(store.add(DOCUMENTS))
    expected = asked(model, copy.deepcopy(cache))

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(model.model.layers[1].mlp, "forward", fail)
        with pytest.raises(MemoryError):
            asked(model, cache, torch.tensor([[40, 41]]))
    with pytest.raises(cr.CacheError, match="did not finish"):
        asked(model, cache)
    cache.rewind()
    assert torch.equal(asked(model, cache), expected)


def test_a_cache_that_was_reset_holds_no_set(tmp_path: Path) -> None:
    model = model_for()
    store = UnitStore(tmp_path, model)
    cache = store.cache(store.add(DOCUMENTS))
    cache.reset()
    assert (cache.documents, cache.tokens, cache.get_seq_length()) == ([], 0, 0)
    torch.testing.assert_close(asked(model, cache), asked(model, store.cache([])), rtol=0, atol=1e-12)


@pytest.mark.parametrize("window", [0, 6])
def test_a_cache_that_has_grown_is_as_fresh_when_rewound(window: int, tmp_path: Path) -> None:
    """To the bit: its memory lies as a fresh one's does, by which some kernels choose how they add up."""
    model = model_for(window=window, dtype=torch.float32, num_attention_heads=4)
    store = UnitStore(tmp_path, model)
    keys = store.add([[first, second, 9] for first in range(10, 30) for second in range(30, 34)])
    cache = store.cache(keys)
    expected = asked(model, store.cache(keys))
    for length in (3, 100, 300):
        asked(model, cache, torch.arange(length)[None] % 50 + 6)
        cache.rewind()
        assert torch.equal(asked(model, cache), expected)
        cache.rewind()
        fresh = store.cache(keys)
        assert same_bits(cache, fresh)
        assert strides_of(cache) == strides_of(fresh)


def strides_of(cache: SetCache) -> list[tuple[int, ...]]:
    return [x.stride() for layer in cache.layers[:-1] for x in (layer.keys, layer.values)]
