"""What is read behind a set is written where there is room, and everything is as with a cache that copies."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache

from contentrope.store import SetCache, UnitStore
from contentrope.store.layers import ROOM, RoomyLayer
from tests.store.helpers import DOCUMENTS, QUESTION, asked, model_for


def states(columns: int, seed: int, rows: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, rows, 3, columns, 8, generator=generator)
    return keys, values


def equal(one: Any, other: Any) -> bool:
    return torch.equal(one.keys, other.keys) and torch.equal(one.values, other.values)


class Copied(TorchDispatchMode):
    """Counts the numbers that are written to memory of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.cat.default, torch.ops.aten.copy_.default, torch.ops.aten.clone.default):
            self.numbers += found.numel()
        return found


@torch.no_grad()
def test_a_layer_holds_what_one_that_copies_holds() -> None:
    """Through all that is done to a cache, and with many tokens behind."""
    from transformers.cache_utils import DynamicLayer

    ours, plain = RoomyLayer(), DynamicLayer()
    steps: list[Any] = [
        *(lambda x, n=n: x.update(*states(n, n)) for n in (5, 1, 1, 2 * ROOM, 1)),
        lambda x: x.crop(-3),
        lambda x: x.update(*states(2, 20)),
        lambda x: x.reorder_cache(torch.tensor([1, 0])),
        lambda x: x.update(*states(1, 21)),
        lambda x: x.batch_repeat_interleave(2),
        lambda x: x.update(*states(1, 22, rows=4)),
        lambda x: x.batch_select_indices(torch.tensor([3, 0])),
        lambda x: x.batch_select_indices(torch.tensor([True, True])),
        lambda x: x.update(*states(1, 23)),
        lambda x: setattr(x, "keys", x.keys * 2),
        lambda x: x.update(*states(1, 24)),
        lambda x: x.reset(),
        lambda x: x.update(*states(4, 25)),
    ]
    for number, step in enumerate(steps):
        given = step(ours), step(plain)
        if number != len(steps) - 2:
            assert equal(ours, plain), number
            assert ours.get_seq_length() == plain.get_seq_length()
        if given[0] is not None:
            assert all(torch.equal(a, b) for a, b in zip(*given, strict=True))


@torch.no_grad()
def test_a_token_copies_itself_and_not_the_set(tmp_path: Path) -> None:
    model = model_for()
    store = UnitStore(tmp_path, model)
    cache, plain = store.cache(store.add(DOCUMENTS)), DynamicCache(config=model.config)
    for layer, own in zip(cache.layers[:-1], plain.layers, strict=True):
        own.update(layer.keys.clone(), layer.values.clone())
    counted = []
    for layer in (cache.layers[0], plain.layers[0]):
        token = [x[:, :, :1].clone() for x in (layer.keys, layer.values)]
        with Copied() as copied:
            for _ in range(ROOM // 2):
                layer.update(*token)
        counted.append(copied.numbers)
    size = 2 * token[0].numel() * (ROOM // 2)
    assert counted[0] == size
    assert counted[1] > 10 * size, "the control"


@torch.no_grad()
def test_what_a_layer_was_given_is_never_written_to() -> None:
    """Somebody else may hold it, with something behind it."""
    theirs = states(40, 1)[0].clone()
    before, layer = theirs.clone(), RoomyLayer()
    layer.lazy_initialization(theirs, theirs)
    layer.keys, layer.values = theirs[:, :, :10], theirs[:, :, :10]
    layer.update(*states(3, 2))
    assert torch.equal(theirs, before)
    assert torch.equal(layer.keys[:, :, :10], before[:, :, :10])


@torch.no_grad()
def test_copies_do_not_write_to_one_another() -> None:
    layer = RoomyLayer()
    layer.update(*states(5, 1))
    other = copy.deepcopy(layer)
    layer.update(*states(1, 2))
    other.update(*states(1, 3))
    assert torch.equal(layer.keys[:, :, 5:], states(1, 2)[0])
    assert torch.equal(other.keys[:, :, 5:], states(1, 3)[0])


def test_gradients_go_through_what_is_read_in_pieces(tmp_path: Path) -> None:
    """A backward pass needs the keys of every call as they were, also of calls without gradients in between."""
    model = model_for()
    store = UnitStore(tmp_path, model)
    cache = store.cache(store.add(DOCUMENTS))
    whole = model(QUESTION, past_key_values=store.cache(cache.documents)).logits
    pieces = torch.cat([model(QUESTION[:, i : i + 3], past_key_values=cache).logits for i in (0, 3, 6)], dim=1)
    asked(model, cache, torch.tensor([[40, 41]]))
    weight = model.model.layers[0].self_attn.k_proj.weight
    expected, found = (torch.autograd.grad(x.square().sum(), weight)[0] for x in (whole, pieces))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def test_what_was_read_in_inference_mode_is_read_on_without(tmp_path: Path) -> None:
    model = model_for()
    store = UnitStore(tmp_path, model)
    keys = store.add(DOCUMENTS)
    with torch.inference_mode():
        cache = store.cache(keys)
        asked(model, cache, QUESTION[:, :4])
    found = asked(model, cache, QUESTION[:, 4:])
    torch.testing.assert_close(found, asked(model, store.cache(keys))[:, 4:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("rows", [1, 3])
def test_copied_rows_are_read_behind_and_the_set_stays(name: str, rows: int, tmp_path: Path) -> None:
    model = model_for(name)
    store = UnitStore(tmp_path, model)
    cache = store.cache(store.add(DOCUMENTS))
    before = [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers[:-1]]
    made = cache.copied(rows)
    questions = (torch.arange(9 * rows).view(rows, 9) % 20) + 40
    found = asked(model, made, questions)
    for row in range(rows):
        alone = asked(model, store.cache(cache.documents), questions[row : row + 1])
        torch.testing.assert_close(found[row : row + 1], alone, rtol=0, atol=1e-5 if name == "gemma3" else 1e-12)
    assert isinstance(made, SetCache)
    assert not cache.has_read_on
    for layer, (keys, values) in zip(cache.layers[:-1], before, strict=True):
        assert torch.equal(layer.keys, keys)
        assert torch.equal(layer.values, values)
    made.rewind()
    assert torch.equal(made.layers[0].keys[:1], cache.layers[0].keys)


def test_copies_of_a_set_do_not_write_to_one_another(tmp_path: Path) -> None:
    model = model_for()
    store = UnitStore(tmp_path, model)
    cache = store.cache(store.add(DOCUMENTS))
    one, other = cache.copied(), cache.copied()
    asked(model, one, QUESTION[:, :4])
    asked(model, other, QUESTION[:, 4:])
    found = asked(model, one, QUESTION[:, 4:])
    torch.testing.assert_close(found, asked(model, store.cache(cache.documents))[:, 4:], rtol=0, atol=1e-12)


def test_memory_is_counted_with_the_room_in_it(tmp_path: Path) -> None:
    model = model_for()
    store = UnitStore(tmp_path, model)
    cache = store.cache(store.add(DOCUMENTS))
    assert cache.nbytes == (cache.tokens + ROOM) * store.layout.bytes_per_token
    assert cache.copied(3).nbytes == 3 * cache.nbytes
