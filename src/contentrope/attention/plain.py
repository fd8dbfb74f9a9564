"""Ordinary causal attention for the schemes without addresses: padding, a cache, ALiBi's slopes; no seq x seq tensor.
Below it, what all attention with written-out scores shares: who sees whom, grouped queries, tiles, reading the values.

Shapes: batch, heads, kv_heads, group (query heads of one key head), queries (the last of the keys), keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from contentrope.rotary import at_least_float32

TILE = 256
"""Queries per call where a mask must be written out."""
TILE_SCORES = 2**26
"""Bound on one tile's scores, in numbers."""

ResultT = TypeVar("ResultT")


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


def tile_size(rows: int, keys: int, most: int) -> int:
    """Queries per tile: ``most``, or fewer where that many would make too large a tensor of scores."""
    return max(16, min(most, TILE_SCORES // max(rows * keys, 1)))


def tiles_from_the_end(queries: int, tile: int) -> Iterator[tuple[int, int]]:
    """First and last column of every tile. The one with most keys comes first: an allocator that holds on to what was
    freed has room for all others then, where growing tiles would each need room of their own."""
    for begin in reversed(range(0, queries, tile)):
        yield begin, min(begin + tile, queries)


def visible_pairs(
    begin: int, seen: int, key_valid: Bool[Tensor, "batch keys"] | None, device: torch.device
) -> Bool[Tensor, "rows 1 queries seen"]:
    """What queries at columns begin..seen see of keys 0..seen; one row for all where there is no padding."""
    columns = torch.arange(seen, device=device)
    query_column = columns[begin:, None]
    visible = (columns <= query_column)[None, None]
    if key_valid is None:
        return visible
    # A padding query may look at itself: softmax over nothing is 0/0.
    return visible & (key_valid[:, None, None, :seen] | (columns == query_column))


def by_key_head(
    query: Float[Tensor, "batch heads queries head_dim"], kv_heads: int
) -> Float[Tensor, "batch kv_heads group queries head_dim"]:
    return query.unflatten(1, (kv_heads, -1))


def grouped_product(
    rows: Float[Tensor, "batch kv_heads group queries inner"], matrix: Float[Tensor, "batch kv_heads inner columns"]
) -> Float[Tensor, "batch kv_heads group queries columns"]:
    """``rows @ matrix`` without a copy of the matrix for every query head."""
    return (rows.flatten(2, 3) @ matrix).unflatten(2, rows.shape[2:4])


def read_values(
    scores: Float[Tensor, "batch kv_heads group queries keys"],
    visible: Bool[Tensor, "rows 1 queries keys"],
    value: Float[Tensor, "batch kv_heads keys head_dim"],
) -> Float[Tensor, "batch kv_heads group queries head_dim"]:
    weights = scores.masked_fill(~visible[:, :, None], -torch.inf).softmax(-1)
    return grouped_product(weights, value)


def silence_padding(
    out: Float[Tensor, "batch heads queries head_dim"], key_valid: Bool[Tensor, "batch keys"] | None
) -> Float[Tensor, "batch heads queries head_dim"]:
    """Padding reads nothing: its output is zero."""
    if key_valid is None:
        return out
    return torch.where(key_valid[:, None, key_valid.shape[1] - out.shape[2] :, None], out, 0.0)


def tile_result(function: Callable[..., ResultT], *arguments: object, only: bool) -> ResultT:
    """The function's result. Unless this is the only tile, the backward pass calls it again instead of keeping what
    lies between: the tiles of a long sequence together are as large as all its pairs."""
    if only or not torch.is_grad_enabled():
        return function(*arguments)
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
