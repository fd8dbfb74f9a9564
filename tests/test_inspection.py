"""Attention weights read off the model, for every scheme."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from contentrope import schemes
from contentrope.inspection import attention_weights
from tests.support import lively_model, random_ids


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("scheme", schemes.names())
def test_the_weights_are_those_the_model_reads_its_values_with(scheme: str, kv_heads: int) -> None:
    """The first block of a model whose attention is passed on as it is, and nothing else added."""
    model, ids = lively_model(scheme, kv_heads=kv_heads), random_ids(2, 31)
    block = model.blocks[0]
    with torch.no_grad():
        block.attention_out.weight.copy_(torch.eye(24))
        for parameter in (block.attention_out.bias, block.feed_down.weight, block.feed_down.bias):
            parameter.zero_()
    seen: dict[str, Tensor] = {}
    block.register_forward_hook(lambda module, given, out: seen.update(given=given[0], out=out))
    torch.manual_seed(3)  # for addresses at random
    weights = attention_weights(model, ids)[0]
    *_, value = block.query_key_value(block.attention_norm(seen["given"])).split((24, 12 * kv_heads, 12 * kv_heads), -1)
    by_head = value.unflatten(-1, (kv_heads, 12)).transpose(1, 2).repeat_interleave(2 // kv_heads, dim=1)
    read = (weights @ by_head).transpose(1, 2).flatten(2)
    torch.testing.assert_close(read, seen["out"] - seen["given"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("scheme", schemes.names())
def test_weights_sum_to_one_and_none_is_in_the_future(scheme: str) -> None:
    for weights in attention_weights(lively_model(scheme), random_ids(1, 20)):
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
        assert weights.triu(1).abs().max() == 0
        assert weights.min() >= 0


def test_padding_is_seen_by_nobody_and_memory_units_see_only_themselves() -> None:
    model, ids = lively_model("content"), torch.tensor([[3, 0, 4, 5, 0, 6, 7, 8]])
    valid = torch.tensor([[False, True, True, True, True, True, True, True]])
    memory = torch.tensor([[False, False, True, True, True, False, False, False]])
    for weights in attention_weights(model, ids, valid=valid, memory=memory):
        assert weights[..., 0].abs().max() == 0
        assert weights[:, :, 2:5, :2].abs().max() == 0
        assert weights[:, :, 5:, 1:5].min() > 0


def test_the_model_is_left_as_it_was() -> None:
    model, ids = lively_model("content", dropout=0.5).train(), random_ids(1, 9)
    with pytest.raises(RuntimeError, match="a block that fails"):
        attention_weights(_failing(model), ids)
    assert model.training
    assert all(not block._forward_pre_hooks for block in model.blocks)


def _failing(model: nn.Module) -> nn.Module:
    def fail(*given: object) -> None:
        raise RuntimeError("a block that fails")

    model.blocks[-1].feed_down.register_forward_hook(fail)
    return model
