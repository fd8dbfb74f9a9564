"""Dense definitions in float64, written from the papers without the library's parts."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import contentrope as cr
from tests.support.decoder import layer_norm

# Longer than the 256 queries after which plain attention begins a new tile.
LONG = 300
CLOSE = {"rtol": 0, "atol": 1e-10}

Scores = Callable[[int, Tensor, Tensor], Tensor]


def naive_logits(
    model: cr.Transformer,
    ids: Tensor,
    scores: Scores,
    *,
    valid: Tensor | None = None,
    added: Tensor | None = None,
) -> Tensor:
    """A pre-norm GELU decoder with every pair's score in one dense tensor; the scheme says what the scores are."""
    config = model.config
    x = model.embedding.weight[ids]
    x = x if added is None else x + added
    seq = ids.shape[1]
    visible = torch.ones(seq, seq).tril().bool().expand(len(ids), 1, seq, seq)
    if valid is not None:
        visible = visible & valid[:, None, None]
    for layer, block in enumerate(model.blocks):
        h = layer_norm(x, block.attention_norm) @ block.query_key_value.weight.T + block.query_key_value.bias
        by_head = h.unflatten(-1, (-1, config.head_dim)).transpose(1, 2)
        query, key, value = by_head.split((config.heads, config.key_heads, config.key_heads), dim=1)
        key, value = (t.repeat_interleave(config.group, dim=1) for t in (key, value))
        masked = scores(layer, query, key).masked_fill(~visible, -torch.inf)
        read = masked.softmax(-1).nan_to_num(0.0) @ value
        if valid is not None:
            read = read * valid[:, None, :, None]
        x = x + read.transpose(1, 2).flatten(2) @ block.attention_out.weight.T + block.attention_out.bias
        h = layer_norm(x, block.feed_norm) @ block.feed_up.weight.T + block.feed_up.bias
        x = x + F.gelu(h) @ block.feed_down.weight.T + block.feed_down.bias
    return layer_norm(x, model.norm) @ model.head.weight.T + model.head.bias


def rotated_by(x: Tensor, angles: Tensor, layout: str = "half") -> Tensor:
    """Rotate (batch, heads, seq, head_dim) by angles (batch, heads or 1, seq, pairs), as complex numbers."""
    pairs = angles.shape[-1]
    rest = x[..., 2 * pairs :]
    real, imaginary = (
        (x[..., :pairs], x[..., pairs : 2 * pairs])
        if layout == "half"
        else (x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2])
    )
    number = torch.complex(real, imaginary) * torch.polar(torch.ones_like(angles), angles)
    if layout == "half":
        return torch.cat((number.real, number.imag, rest), dim=-1)
    return torch.cat((torch.view_as_real(number).flatten(-2), rest), dim=-1)


def series(pairs: int, base: float = 10000.0) -> Tensor:
    return torch.tensor([base ** (-b / pairs) for b in range(pairs)], dtype=torch.float64)


def rotary_scores(positions: Tensor, frequencies: Tensor, *, layout: str = "half", gain: float = 1.0) -> Scores:
    """positions (batch or 1, seq); frequencies (pairs) or (heads, pairs)."""
    angles = positions.double()[:, None, :, None] * frequencies.view(-1, 1, frequencies.shape[-1])

    def scores(_layer: int, query: Tensor, key: Tensor) -> Tensor:
        query, key = rotated_by(query, angles, layout), rotated_by(key, angles, layout)
        return gain * query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])

    return scores


def token_counts(valid: Tensor) -> Tensor:
    """Tokens before each token, padding not counted."""
    return (valid.long().cumsum(1) - 1).clamp(min=0)


def assert_equal_where_valid(found: Tensor, expected: Tensor, valid: Tensor) -> None:
    torch.testing.assert_close(found[valid], expected[valid], **CLOSE)
    assert torch.isfinite(found).all()


def drawn_seeds(torch_seed: int, batch: int) -> Tensor:
    """The seeds a forward pass draws: one call of torch's generator."""
    torch.manual_seed(torch_seed)
    seeds = torch.randint(2**62, (batch,))
    torch.manual_seed(torch_seed)
    return seeds
