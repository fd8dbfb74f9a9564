"""A unit travels once, as it is stored, whoever has it; and beside the cache there are only the units under way."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import contentrope as cr
from contentrope.store import UnitStore, filling
from tests.store.helpers import DOCUMENTS, LONG, asked, model_for

MANY = [[first, second, 9, 10] for first in range(11, 27) for second in range(30, 38)]


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that go to the device."""
    sizes: list[int] = []
    way = filling.moved
    monkeypatch.setattr(filling, "moved", lambda x, device: sizes.append(x.nbytes) or way(x, device))
    return sizes


@pytest.mark.parametrize("precision", ["model", "int8"])
def test_what_rows_share_travels_once_and_as_it_is_stored(precision: str, moved: list[int], tmp_path: Path) -> None:
    store = UnitStore(tmp_path, model_for(dtype=torch.float32), precision=precision)
    keys = store.add([*DOCUMENTS, LONG])
    units = {unit for order in store.units_of(keys).values() for unit in order}
    size = sum(sum(x.nbytes for x in piece.states) for piece in store.read(sorted(units)).values())
    store.caches([keys, keys[1:], keys[:4], keys])
    assert sum(moved) == size
    moved.clear()
    cache = store.cache(keys[1:])
    before = sum(moved)
    cache.insert(keys[0])
    assert sum(moved) == size, "an edit moves what comes in"
    assert before < size
    moved.clear()
    for row in (keys, keys[1:], keys[:4], keys):
        store.cache(row)
    assert sum(moved) > 3 * size, "the control: one by one"


def test_rows_have_what_each_has_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With units in chunks, of which a row has all, some that lie apart, or none."""
    store = UnitStore(tmp_path, model_for(dtype=torch.float32))
    keys = store.add([*DOCUMENTS, LONG, *MANY[:20]])
    sets = [keys[1::3], keys[::2], keys, [], keys[:1]]
    for size in (1, 2000, 10**9):
        monkeypatch.setattr(filling, "CHUNK_BYTES", size)
        together = store.caches(sets)
        for row, documents in enumerate(sets):
            alone = store.cache(documents)
            begin = together.tokens - alone.tokens
            for layer, own in zip(together.layers[:-1], alone.layers[:-1], strict=True):
                assert not bool(layer.keys[row, :, :begin].any())
                assert not bool(layer.values[row, :, :begin].any())
                if alone.tokens:
                    assert torch.equal(layer.keys[row, :, begin:], own.keys[0])
                    assert torch.equal(layer.values[row, :, begin:], own.values[0])


class Allocated(TorchDispatchMode):
    """Follows the memory that operators allocate: how much there is, and was at most."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {x.untyped_storage().data_ptr() for x in _tensors([args, kwargs or {}])}
        found = func(*args, **(kwargs or {}))
        for x in _tensors(found):
            memory = x.untyped_storage()
            if memory.data_ptr() not in given and memory.nbytes() and id(memory) not in self._known:
                self._follow(x, memory.nbytes())
        return found

    def _follow(self, x: Tensor, size: int) -> None:
        memory = x.untyped_storage()
        key = id(memory)
        self._known[key] = weakref.ref(memory, lambda _: self._gone(key, size))
        self.now += size
        self.most = max(self.most, self.now)

    def _gone(self, key: int, size: int) -> None:
        del self._known[key]
        self.now -= size


def _tensors(found: Any) -> list[Tensor]:
    return [x for x in torch.utils._pytree.tree_leaves(found) if isinstance(x, Tensor)]


@pytest.mark.parametrize("precision", ["model", "int8"])
@pytest.mark.parametrize("rows", [1, 3])
def test_beside_the_cache_there_is_one_chunk(
    rows: int, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = UnitStore(tmp_path, model_for(dtype=torch.float32), precision=precision)
    keys = store.add(MANY)
    sets = [keys, keys[1:], keys[::2]][:rows]
    orders = [sorted({x for order in store.units_of(documents).values() for x in order}) for documents in sets]

    def beside(size: int) -> float:
        """In sets."""
        monkeypatch.setattr(filling, "CHUNK_BYTES", size)
        with Allocated() as memory:
            found = filling.filled(store, orders, lambda slot, columns: columns)
        kept = sum(x.nbytes for x in (*found.states, found.ids))
        assert memory.now == kept, "all of it was followed"
        return (memory.most - kept) / (found.columns * store.layout.bytes_per_token)

    assert beside(10**9) > 0.8, "the control: all at once"
    assert beside(2000) < 0.1


def test_a_remote_store_reads_no_more_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = UnitStore(f"file://{tmp_path}/store", model_for(dtype=torch.float32))
    keys, asked_for = store.add(MANY), list[int]()
    read = store.place.parts

    def parts(wanted: Any) -> Any:
        wanted = list(wanted)
        asked_for.append(sum(part.end - part.begin for part in wanted))
        return read(wanted)

    monkeypatch.setattr(store.place, "parts", parts)
    monkeypatch.setattr(filling, "CHUNK_BYTES", 3000)
    store.cache(keys)
    assert len(asked_for) > 5
    assert max(asked_for) <= 3000


def test_a_unit_that_is_removed_while_a_set_is_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_for()
    store, other = (UnitStore(f"file://{tmp_path}", model) for _ in range(2))
    keys = store.add(DOCUMENTS)
    monkeypatch.setattr(filling, "CHUNK_BYTES", 1)
    cache, read = store.cache(keys[:2]), store.catalog.read
    before = asked(model, cache)
    cache.rewind()

    def removed(units: Any) -> Any:
        if other.list():
            other.remove(keys)
        return read(units)

    monkeypatch.setattr(store.catalog, "read", removed)
    with pytest.raises(cr.InputError, match=r"removed from|is no document"):
        cache.insert(keys[2:])
    assert torch.equal(asked(model, cache), before), "what is in a cache stays in it"
