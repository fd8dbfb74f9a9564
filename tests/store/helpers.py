"""Tiny attached models, documents, and the same question asked in two ways."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicSlidingWindowLayer

import contentrope.hf as chf
from contentrope.store import SetCache, UnitStore
from tests.hf.models import TERMINATOR, enliven, tiny

DOCUMENTS: list[list[int]] = [
    [7, 8, TERMINATOR, 9],
    [10, TERMINATOR],
    [11, 12, 13, 14, 15, 16, 17],
    [20, 21, TERMINATOR, 22, 23, TERMINATOR],
    [30],
]
QUESTION = torch.tensor([[40, 41, TERMINATOR, 42, 43, 44, TERMINATOR, 45, 46]])
LONG = [7, 8, TERMINATOR, 9, 10, 11, TERMINATOR, 12, 13, 14, 15, TERMINATOR, 16, TERMINATOR, *range(20, 36)]


def model_for(name: str = "llama", *, window: int = 0, competition: float = 0.5, **settings: Any) -> Any:
    model = tiny(name, **settings)
    chf.attach(model, units={TERMINATOR}, max_length=7, window=window, competition=competition, check=False)
    return enliven(model)


@torch.no_grad()
def asked(model: Any, cache: Any, question: Tensor = QUESTION, sizes: Sequence[int] = (99,)) -> Tensor:
    """The logits of a question, read in pieces of these sizes."""
    found, begin = [], 0
    while begin < question.shape[1]:
        end = begin + sizes[len(found) % len(sizes)]
        found.append(model(question[:, begin:end], past_key_values=cache).logits)
        begin = end
    return torch.cat(found, dim=1)


def units_in(store: UnitStore, keys: Iterable[str]) -> list[list[int]]:
    """The token ids of a set of documents, in the order in which they are read."""
    units = sorted({unit for order in store.units_of(keys).values() for unit in order})
    pieces = store.read(units)
    return [pieces[unit].ids.tolist() for unit in units]


@torch.no_grad()
def read_at_once(model: Any, units: list[list[int]], question: Tensor = QUESTION) -> Tensor:
    """The logits of a question behind memory units, all in one call and without a store."""
    ids = torch.tensor([[number for unit in units for number in unit]])
    ends = torch.zeros_like(ids, dtype=torch.bool)
    ends[0, torch.tensor([len(unit) for unit in units]).cumsum(0) - 1] = True
    cache = DynamicCache(config=model.config)
    cache.activate_past_recording()
    model(ids, past_key_values=cache, unit_ends=ends, unit_memory=torch.ones_like(ends))
    for layer in cache.layers:
        if isinstance(layer, DynamicSlidingWindowLayer):  # earlier versions read all that is recorded
            layer.crop(0)
    return model(question, past_key_values=cache).logits


def same_bits(one: SetCache, other: SetCache) -> bool:
    """Of all keys, values, and what is known of the columns."""
    pairs = zip(one.layers[:-1], other.layers[:-1], strict=True)
    for a, b in pairs:
        if a.get_seq_length() != b.get_seq_length():
            return False
        if a.get_seq_length() and not (torch.equal(a.keys, b.keys) and torch.equal(a.values, b.values)):
            return False
    facts = ("ids", "unit", "local", "start", "closes", "memory", "valid")
    columns = one.state.columns, other.state.columns
    return all(torch.equal(*(found.fact(name) for found in columns)) for name in facts)
