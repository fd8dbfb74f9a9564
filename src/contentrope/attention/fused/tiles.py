"""What the fused kernels share: reading tiles, and the pair rule on one tile of scores.

A tile has M queries and N keys. Queries come from one row of the batch and one head, in order, so the unit of its first
query begins at or left of all others' (``left``). Keys left of that are earlier units for every query of the tile:
all pairs are visible and addressed, and there is no rule to evaluate. What lies between there and the diagonal, the
*band*, has both kinds.

Scores are kept in powers of two: ``exp2`` is what the hardware has.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def rows_of(base, column, width: tl.constexpr, stride, count, WIDTH: tl.constexpr):
    """Rows ``column`` of a (tokens, width) matrix, zero beyond its edges."""
    place = tl.arange(0, WIDTH)
    pointer = base + column[:, None].to(tl.int64) * stride + place[None, :]
    return tl.load(pointer, mask=(column < count)[:, None] & (place < width)[None, :], other=0.0)


@triton.jit
def rows_inside(base, column, width: tl.constexpr, stride, WIDTH: tl.constexpr):
    """The same where all rows are known to exist: nothing to check in the inner loop."""
    place = tl.arange(0, WIDTH)
    pointer = base + column[:, None].to(tl.int64) * stride + place[None, :]
    if width == WIDTH:
        return tl.load(pointer)
    return tl.load(pointer, mask=(place < width)[None, :], other=0.0)


@triton.jit
def store_rows(base, column, value, width: tl.constexpr, stride, count, WIDTH: tl.constexpr):
    place = tl.arange(0, WIDTH)
    pointer = base + column[:, None].to(tl.int64) * stride + place[None, :]
    seen = (column < count)[:, None] & (place < width)[None, :]
    tl.store(pointer, value.to(base.dtype.element_ty), mask=seen)


@triton.jit
def hidden_pairs(
    scores, own_unit, key_column, valid, memory_query, length, HAS_VALID: tl.constexpr, HAS_MEMORY: tl.constexpr
):
    """-inf where a key is padding, or lies outside the own unit of a query in a memory unit."""
    if HAS_VALID:
        is_token = tl.load(valid + key_column, mask=key_column < length, other=0) != 0
        scores = tl.where(is_token[None, :], scores, float("-inf"))
    if HAS_MEMORY:
        scores = tl.where(own_unit | (memory_query == 0)[:, None], scores, float("-inf"))
    return scores


@triton.jit
def band_scores(
    query, local, addressed, column, key_column, unit_start, closing, own_bonus, valid, memory_query, scale, length,
    HAS_VALID: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_BONUS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The pair rule on a tile of the band: scores, which keys are of the query's own unit, which are read local."""
    own_unit = key_column[None, :] >= unit_start[:, None]
    reads_local = own_unit & ~closing[:, None]
    scores = tl.where(
        reads_local,
        tl.dot(query, tl.trans(local), input_precision=PRECISION),
        tl.dot(query, tl.trans(addressed), input_precision=PRECISION),
    )
    scores = scores * scale
    if HAS_BONUS:
        scores += tl.where(own_unit, own_bonus[:, None], 0.0)
    scores = tl.where(key_column[None, :] <= column[:, None], scores, float("-inf"))
    scores = hidden_pairs(scores, own_unit, key_column, valid, memory_query, length, HAS_VALID, HAS_MEMORY)
    return scores, own_unit, reads_local


@triton.jit
def first_beyond(left, first_tile, tiles, edge, M: tl.constexpr):
    """The first query tile from ``first_tile`` on whose queries all begin their units at ``edge`` or right of it."""
    low = first_tile
    high = tiles
    while low < high:
        middle = (low + high) // 2
        if tl.load(left + middle * M) >= edge:
            high = middle
        else:
            low = middle + 1
    return low
