"""Attention weights of attached models are those that they read their values with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache

import contentrope as cr
import contentrope.hf as chf
from contentrope.hf.adapter import adapter_of
from contentrope.hf.attention import Read
from contentrope.hf.frame import Frame
from contentrope.hf.inspection import attention_weights, looking
from tests.hf.models import TERMINATOR, WINDOWED, attached, enliven, logits, random_ids, tiny

NAMES = ["llama", "qwen3", "mistral, window", "gemma2", "gpt_oss", "smollm3", "cohere"]
MARKER = 5


def model_of(name: str, window: int) -> Any:
    return attached(name, window=window, competition=0.7, dtype=torch.float64)


@pytest.mark.parametrize("window", [0, 8])
@pytest.mark.parametrize("name", NAMES)
def test_the_weights_are_those_the_values_are_read_with(
    name: str, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ids, held = model_of(name, window), random_ids(2, 30), []
    adapter = adapter_of(model)

    def keep(layer: int, frame: Frame, value: Tensor, read: Read) -> None:
        held.append((value, read(value)[0]))

    monkeypatch.setattr(adapter, "look", keep)
    logits(model, ids)
    monkeypatch.undo()
    found = attention_weights(model, ids)
    assert len(found) == len(held) == len(adapter.layers)
    for weights, (value, out) in zip(found, held, strict=True):
        by_head = value.repeat_interleave(weights.shape[1] // value.shape[1], dim=1)
        torch.testing.assert_close((weights @ by_head).transpose(1, 2), out, rtol=0, atol=1e-12)
        assert float(weights.triu(1).abs().max()) == 0.0


@pytest.mark.parametrize("window", [0, 8])
def test_groups_add_up_their_columns_and_a_cache_changes_nothing(window: int) -> None:
    model, ids = model_of("llama", window), random_ids(2, 30)
    groups = torch.arange(30).expand(2, -1) // 7
    by_column, by_group = attention_weights(model, ids), attention_weights(model, ids, groups=groups)
    for columns, found in zip(by_column, by_group, strict=True):
        sums = torch.stack([columns[..., groups[0] == n].sum(-1) for n in range(5)], dim=-1)
        torch.testing.assert_close(found, sums, rtol=0, atol=1e-12)
    for cache in (DynamicCache(config=model.config), StaticCache(model.config, 40)):
        with torch.no_grad(), looking(model, groups[:, :28]) as calls:
            for begin, end in ((0, 20), (20, 21), (21, 28), (28, 30)):
                logits(model, ids[:, begin:end], past_key_values=cache)
        assert len(calls) == 4
        for layer, whole in enumerate(by_group):
            torch.testing.assert_close(calls[2][layer], whole[:, :, 21:28, :4], rtol=0, atol=1e-12)
            last = by_column[layer][:, :, 28:, 28:].sum(-1)
            torch.testing.assert_close(calls[3][layer][..., 4], last, rtol=0, atol=1e-12)


@pytest.mark.parametrize("window", [0, 8])
def test_memory_units_see_only_themselves(window: int) -> None:
    model = tiny("llama", dtype=torch.float64)
    chf.attach(model, units={TERMINATOR}, window=window, competition=0.7, max_length=7, reader={MARKER}, check=False)
    enliven(model)
    ids = torch.tensor([[7, 8, TERMINATOR, 9, 9, TERMINATOR, MARKER, 6, 7, 8]])
    units = torch.tensor([[0, 0, 0, 1, 1, 1, 2, 2, 2, 2]])
    for weights in attention_weights(model, ids, groups=units):
        assert float(weights[:, :, 3:6, 0].abs().max()) == 0.0
        assert float(weights[:, :, 6:, :2].min()) > 0.0


def test_it_looks_once_at_a_time_and_leaves_no_trace() -> None:
    model, ids = attached("llama"), random_ids(2, 12)
    before = logits(model, ids)
    with looking(model), pytest.raises(cr.InputError, match="already"), looking(model):
        pass
    with pytest.raises(cr.InputError, match="3 rows"):
        attention_weights(model, ids, groups=torch.zeros(3, 12, dtype=torch.int64))
    for groups in (torch.tensor([[0, -1]]), torch.tensor([1, 2])):
        with pytest.raises(cr.InputError, match="groups"):
            attention_weights(model, ids, groups=groups)
    assert adapter_of(model).look is None
    assert torch.equal(logits(model, ids), before)


def test_all_that_take_a_window_are_looked_into() -> None:
    for name in WINDOWED:
        for weights in attention_weights(attached(name, window=8), random_ids(1, 20)):
            assert float(weights.sum(-1).max()) < 1 + 1e-4
            assert float(weights.min()) >= 0
