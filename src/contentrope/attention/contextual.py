"""Attention with contextual positions (CoPE): a key's distance is how many keys from it to the query pass a gate.

    gate(i, k) = sigmoid(q_i k_k / sqrt(head_dim))
    position(i, j) = gate(i, j) + ... + gate(i, i), at most the last position there is
    score(i, j) = q_i k_j / sqrt(head_dim) + q_i e[position(i, j)]

Between two whole positions the last term is interpolated, so positions learn through it.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from contentrope.attention.plain import (
    by_key_head,
    grouped_product,
    read_values,
    silence_padding,
    tile_result,
    tile_size,
    tiles_from_the_end,
    visible_pairs,
)
from contentrope.rotary import at_least_float32

TILE = 256
"""Queries per tile; short sequences are read in one."""


def contextual_attention(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys head_dim"],
    embeddings: Float[Tensor, "positions head_dim"],
    *,
    key_valid: Bool[Tensor, "batch keys"] | None = None,
) -> Float[Tensor, "batch heads queries head_dim"]:
    wide = at_least_float32(query.dtype)
    queries, keys = query.shape[2], key.shape[2]
    parts = []
    # Sums of thousands of gates need more digits than a narrow dtype has.
    with torch.autocast(query.device.type, enabled=False):
        grouped = by_key_head(query.to(wide), key.shape[1])
        key, value, embeddings = key.to(wide), value.to(wide), embeddings.to(wide)
        tile = tile_size(query.shape[0] * query.shape[1], keys, TILE)
        for begin, end in tiles_from_the_end(queries, tile):
            seen = keys - queries + end
            arguments = grouped[..., begin:end, :], key[:, :, :seen], value[:, :, :seen], embeddings, key_valid
            parts.append(tile_result(_tile, *arguments, only=queries <= tile))
    out = torch.cat(parts[::-1], dim=3).flatten(1, 2).to(query.dtype)
    return silence_padding(out, key_valid)


def _tile(
    query: Float[Tensor, "batch kv_heads group tile head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys head_dim"],
    embeddings: Float[Tensor, "positions head_dim"],
    key_valid: Bool[Tensor, "batch columns"] | None,
) -> Float[Tensor, "batch kv_heads group tile head_dim"]:
    visible = visible_pairs(key.shape[2] - query.shape[3], key.shape[2], key_valid, query.device)
    logits = grouped_product(query / math.sqrt(query.shape[-1]), key.mT)
    position = contextual_positions(logits, visible[:, :, None], last=len(embeddings) - 1)
    # The query is not scaled here: so it is in the paper's listing.
    scores = logits + interpolated(query @ embeddings.T, position)
    return read_values(scores, visible, value)


def contextual_positions(
    logits: Float[Tensor, "*rows keys"], visible: Bool[Tensor, "*#rows keys"], *, last: int
) -> Float[Tensor, "*rows keys"]:
    """Gates summed from the query back to each key: a difference of two sums from the start would cancel digits."""
    gates = logits.sigmoid().masked_fill(~visible, 0.0)
    return gates.flip(-1).cumsum(-1).flip(-1).clamp(max=last)


def interpolated(
    by_position: Float[Tensor, "*rows positions"], position: Float[Tensor, "*rows keys"]
) -> Float[Tensor, "*rows keys"]:
    """The value at each fractional position, linear between the two whole ones around it."""
    below = position.detach().floor()
    index = below.long()
    slope = torch.diff(by_position, append=by_position[..., -1:])
    return torch.addcmul(by_position.gather(-1, index), slope.gather(-1, index), position - below)
