"""The decoder around a scheme, written once more without the library's parts: every pair's score in one tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import contentrope as cr

Scores = Callable[[int, Tensor, Tensor, Tensor], Tensor]


def dense_logits(model: cr.Transformer, ids: Tensor, scores: Scores, valid: Tensor | None = None) -> Tensor:
    """``scores(layer, hidden, query, key)``: keys are repeated for the query heads that share them."""
    config, seq = model.config, ids.shape[1]
    valid = torch.ones_like(ids).bool() if valid is None else valid
    visible = torch.ones(seq, seq).tril().bool() & valid[:, None, None]
    x = model.embedding.weight[ids]
    for layer, block in enumerate(model.blocks):
        hidden = layer_norm(x, block.attention_norm)
        projected = hidden @ block.query_key_value.weight.T + block.query_key_value.bias
        by_head = projected.unflatten(-1, (-1, config.head_dim)).transpose(1, 2)
        query, key, value = by_head.split((config.heads, config.key_heads, config.key_heads), dim=1)
        key, value = (t.repeat_interleave(config.group, dim=1) for t in (key, value))
        read = read_dense(scores(layer, hidden, query, key), value, visible) * valid[:, None, :, None]
        x = x + read.transpose(1, 2).flatten(2) @ block.attention_out.weight.T + block.attention_out.bias
        h = layer_norm(x, block.feed_norm) @ block.feed_up.weight.T + block.feed_up.bias
        x = x + F.gelu(h) @ block.feed_down.weight.T + block.feed_down.bias
    return layer_norm(x, model.norm) @ model.head.weight.T + model.head.bias


def read_dense(scores: Tensor, value: Tensor, visible: Tensor | None = None) -> Tensor:
    """Softmax over the visible keys; a query that sees none reads zeros."""
    queries, keys = scores.shape[-2:]
    if visible is None:
        visible = torch.ones(queries, keys).tril(keys - queries).bool()
    return scores.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num(0.0) @ value


def layer_norm(x: Tensor, norm: Any) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def padding_everywhere(seq: int) -> Tensor:
    """Three rows: padded on the left, on the right, and with holes."""
    valid = torch.ones(3, seq, dtype=torch.bool)
    valid[0, : seq // 3] = False
    valid[1, -seq // 4 :] = False
    valid[2, 2::5] = False
    return valid
