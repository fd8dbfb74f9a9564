"""Attention along a path of reflections (PaTH): score(i, j) = q_i H_i H_(i-1) ... H_(j+1) k_j / sqrt(head_dim).

H_t = I - r_t r_t^T with a *reflector* r_t of squared length beta_t: 0 is the identity, 2 a reflection. Products of
H inside a chunk have a closed form: with R the rows r_t and L = I + strict_lower(R R^T), from j to i

    H_i ... H_(j+1) = I - sum over j < t <= s <= i of r_s inverse(L)[s, t] r_t^T,

so one triangular solve per chunk replaces the loop over its tokens. Keys of earlier chunks are carried along as the
next chunk sees them: rewritten by every H since.

Shapes: batch, heads, kv_heads, group, columns (any number of tokens), chunks, chunk (tokens of one), head_dim.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from contentrope.attention.plain import (
    by_key_head,
    grouped_product,
    read_values,
    silence_padding,
    tile_result,
    visible_pairs,
)
from contentrope.rotary import at_least_float32

CHUNK = 64
"""Tokens whose reflections are multiplied in one triangular solve; its work per token grows with the square."""
SEGMENT = 1024
"""Tokens, a multiple of CHUNK, whose chunks are folded together. Of longer sequences the backward pass keeps the
carried keys once per segment and computes the rest again."""


class Folded(NamedTuple):
    """The reflections of each chunk in closed form; the last chunk is filled up with identities."""

    key: Float[Tensor, "batch kv_heads chunks chunk head_dim"]
    reflector: Float[Tensor, "batch kv_heads chunks chunk head_dim"]
    chain: Float[Tensor, "batch kv_heads chunks chunk head_dim"]
    """inverse(L) R: the chunk's product is I - R^T chain."""
    crossing: Float[Tensor, "batch kv_heads chunks chunk chunk"]
    """inverse(L) strict_lower(R K^T): what reflections after a key take from it."""
    rewritten: Float[Tensor, "batch kv_heads chunks chunk head_dim"]
    """The keys as the next chunk sees them."""
    columns: int

    def size(self, chunk: int) -> int:
        """Tokens of a chunk without its filling."""
        return min(self.key.shape[3], self.columns - chunk * self.key.shape[3])


def path_attention(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads queries head_dim"],
    value: Float[Tensor, "batch kv_heads keys head_dim"],
    reflector: Float[Tensor, "batch kv_heads queries head_dim"],
    seen: Float[Tensor, "batch kv_heads earlier head_dim"] | None = None,
    *,
    key_valid: Bool[Tensor, "batch keys"] | None = None,
) -> tuple[Float[Tensor, "batch heads queries head_dim"], Float[Tensor, "batch kv_heads keys head_dim"]]:
    """``seen`` are the keys of earlier columns rewritten up to the last of them. Returned beside the output: all keys
    rewritten up to the last new column. Values cover earlier and new columns."""
    wide = at_least_float32(query.dtype)
    queries, earlier = query.shape[2], value.shape[2] - query.shape[2]
    parts = []
    with torch.autocast(query.device.type, enabled=False):
        grouped = by_key_head(query.to(wide) / math.sqrt(query.shape[-1]), key.shape[1])
        key, value, reflector = key.to(wide), value.to(wide), reflector.to(wide)
        seen = key[:, :, :0] if seen is None else seen
        for begin in range(0, queries, SEGMENT):
            end = min(begin + SEGMENT, queries)
            new, values = (x[:, :, begin:end] for x in (key, reflector)), value[:, :, : earlier + end]
            arguments = grouped[..., begin:end, :], *new, values, seen, key_valid
            out, seen = tile_result(_segment, *arguments, only=queries <= SEGMENT)
            parts.append(out)
    out = torch.cat(parts, dim=3).flatten(1, 2).to(query.dtype)
    return silence_padding(out, key_valid), seen


def rewritten_keys(
    key: Float[Tensor, "batch kv_heads columns head_dim"], reflector: Float[Tensor, "batch kv_heads columns head_dim"]
) -> Float[Tensor, "batch kv_heads columns head_dim"]:
    """Every key k_j as H_last ... H_(j+1) k_j."""
    seen = reflector[:, :, :0]
    with torch.autocast(key.device.type, enabled=False):
        for keys, reflectors in zip(key.split(SEGMENT, dim=2), reflector.split(SEGMENT, dim=2), strict=True):
            folded = fold(keys.to(reflector.dtype), reflectors)
            for chunk in range(folded.key.shape[2]):
                seen = _carried(seen, folded, chunk)
    return seen


def fold(
    key: Float[Tensor, "batch kv_heads columns head_dim"], reflector: Float[Tensor, "batch kv_heads columns head_dim"]
) -> Folded:
    columns, head_dim = key.shape[2:]
    key, reflector = _in_chunks(key), _in_chunks(reflector)
    after_key = (reflector @ key.mT).tril(-1)
    # The solve reads only what lies below the diagonal of its first argument.
    solved = torch.linalg.solve_triangular(
        reflector @ reflector.mT, torch.cat((reflector, after_key), dim=-1), upper=False, unitriangular=True
    )
    chain, crossing = solved[..., :head_dim], solved[..., head_dim:]
    return Folded(key, reflector, chain, crossing, key - crossing.mT @ reflector, columns)


def _in_chunks(x: Float[Tensor, "*rows columns head_dim"]) -> Float[Tensor, "*rows chunks chunk head_dim"]:
    """Filled up with zeros to whole chunks: a reflector of zero changes nothing."""
    columns = x.shape[-2]
    size = min(CHUNK, columns)
    return F.pad(x, (0, 0, 0, -columns % size)).unflatten(-2, (-1, size))


def _carried(
    seen: Float[Tensor, "batch kv_heads earlier head_dim"], folded: Folded, chunk: int
) -> Float[Tensor, "batch kv_heads later head_dim"]:
    """Keys as seen after a chunk: earlier ones rewritten by all of its reflections, its own by those after each."""
    chain, reflector = folded.chain[:, :, chunk], folded.reflector[:, :, chunk]
    own = folded.rewritten[:, :, chunk, : folded.size(chunk)]
    if not seen.shape[2]:
        return own
    # One token costs two products with vectors; a chunk is cheaper as one matrix.
    few = 2 * chain.shape[2] < chain.shape[3]
    taken = (seen @ chain.mT) @ reflector if few else seen @ (chain.mT @ reflector)
    return torch.cat((seen - taken, own), dim=2)


def _segment(
    query: Float[Tensor, "batch kv_heads group queries head_dim"],
    key: Float[Tensor, "batch kv_heads queries head_dim"],
    reflector: Float[Tensor, "batch kv_heads queries head_dim"],
    value: Float[Tensor, "batch kv_heads keys head_dim"],
    seen: Float[Tensor, "batch kv_heads earlier head_dim"],
    key_valid: Bool[Tensor, "batch columns"] | None,
) -> tuple[Tensor, Tensor]:
    folded = fold(key, reflector)
    own, carried_back = _own_scores(query, folded)
    parts = []
    for chunk in range(folded.key.shape[2]):
        size, begin = folded.size(chunk), seen.shape[2]
        scores = own[:, :, :, chunk, :size, :size]
        if begin:
            before = grouped_product(carried_back[:, :, :, chunk, :size], seen.mT)
            scores = torch.cat((before, scores), dim=-1)
        visible = visible_pairs(begin, begin + size, key_valid, query.device)
        parts.append(read_values(scores, visible, value[:, :, : begin + size]))
        seen = _carried(seen, folded, chunk)
    return torch.cat(parts, dim=3), seen


def _own_scores(
    query: Float[Tensor, "batch kv_heads group queries head_dim"], folded: Folded
) -> tuple[
    Float[Tensor, "batch kv_heads group chunks chunk chunk"],
    Float[Tensor, "batch kv_heads group chunks chunk head_dim"],
]:
    """Scores inside each chunk, and the queries carried back to its start, where the keys of earlier chunks stand."""
    query = _in_chunks(query)
    key, reflector, chain, crossing = (x[:, :, None] for x in folded[:4])
    before_query = (query @ reflector.mT).tril()
    return query @ key.mT - before_query @ crossing, query - before_query @ chain
