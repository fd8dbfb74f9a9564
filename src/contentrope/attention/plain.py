"""Ordinary causal attention for the schemes without addresses: padding, a cache, ALiBi's slopes; no seq x seq tensor.

Shapes: batch, heads, queries (the last of the keys), keys.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from contentrope.attention.scores import silence_padding, tiles_from_the_end, visible_pairs
from contentrope.rotary import at_least_float32

TILE = 256
"""Queries per call where a mask must be written out."""


def causal_attention(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys head_dim"],
    *,
    key_valid: Bool[Tensor, "batch keys"] | None = None,
    slopes: Float[Tensor, "heads"] | None = None,
    positions: Int[Tensor, "rows keys"] | None = None,
) -> Float[Tensor, "batch heads queries head_dim"]:
    """``slopes`` subtracts ``slope * (position of query - position of key)`` from the scores."""
    queries, keys = query.shape[2], key.shape[2]
    grouped = query.shape[1] != key.shape[1]
    if key_valid is None and slopes is None and queries in (1, keys):
        return F.scaled_dot_product_attention(query, key, value, is_causal=queries > 1, enable_gqa=grouped)
    parts = []
    for begin, end in tiles_from_the_end(queries, TILE):
        seen = keys - queries + end
        mask = _tile_mask(keys - queries + begin, seen, key_valid, slopes, positions, query)
        tile = query[:, :, begin:end], key[:, :, :seen], value[:, :, :seen]
        parts.append(F.scaled_dot_product_attention(*tile, attn_mask=mask, enable_gqa=grouped))
    out = torch.cat(parts[::-1], dim=2) if parts else torch.zeros_like(query)
    return silence_padding(out, key_valid)


def _tile_mask(
    begin: int,
    seen: int,
    key_valid: Tensor | None,
    slopes: Tensor | None,
    positions: Tensor | None,
    query: Tensor,
) -> Tensor:
    """What queries at columns begin..seen see of keys 0..seen: boolean, or a bias where there are slopes."""
    visible = visible_pairs(begin, seen, key_valid, query.device)
    if slopes is None:
        return visible
    position = torch.arange(seen, device=query.device)[None] if positions is None else positions[:, :seen]
    distance = (position[:, begin:, None] - position[:, None, :])[:, None]
    bias = -slopes.to(at_least_float32(query.dtype))[:, None, None] * distance
    return bias.masked_fill(~visible, -torch.inf).to(query.dtype)
