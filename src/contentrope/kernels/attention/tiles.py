"""What the fused kernels share: reading tiles, which keys a tile of queries reads how, and the pair rule on one tile.

A tile has M queries and N keys. Queries come from one row of the batch and one head, in order, so the unit of its first
query begins at or left of all others' (``left``). Keys left of that are earlier units for every query of the tile:
all pairs are visible and addressed, and there is no rule to evaluate. What lies between there and the diagonal, the
*band*, has both kinds.

Where no unit is longer than ``reach``, keys that lie ``reach`` or more to the left of a query are read elsewhere
(``far.py``); the kernels then begin with what was found there, and read no pair twice.

Scores are plain products; ``factor`` turns them into powers of two, of which the hardware has the exponential.

Kernels that go through keys have queries as the rows of their scores; the one that goes through queries has keys as
rows, so that it need not transpose what it multiplies with. The pair rule serves both: what belongs to queries is given
to it as a column or a row, ``[:, None]`` or ``[None, :]``, and what belongs to keys as the other.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def place_of(abreast, tiles):
    """The head of a program, counted over the whole batch, and its tile, counted from the one with most to read.

    ``abreast`` heads are gone through tile by tile before the next begin: all long tiles start early, so that no SM
    is left alone with one at the end, and what so few heads read again stays in the cache.
    """
    program = tl.program_id(0)
    first = program // (abreast * tiles) * abreast
    here = tl.minimum(abreast, tl.num_programs(0) // tiles - first)
    turn = program - first * tiles
    return first + turn % here, turn // here


@triton.jit
def rows_of(base, column, width: tl.constexpr, stride, count, WIDTH: tl.constexpr):
    """Rows ``column`` of a (tokens, width) matrix, zero beyond its edges."""
    place = tl.arange(0, WIDTH)
    pointer = base + column[:, None].to(tl.int64) * stride + place[None, :]
    return tl.load(pointer, mask=(column < count)[:, None] & (place < width)[None, :], other=0.0)


@triton.jit
def rows_inside(base, first, row, width: tl.constexpr, stride, WIDTH: tl.constexpr):
    """The same where all rows are known to exist: those ``row`` behind ``first``. There is nothing to check in an inner
    loop, and only one number to compute anew."""
    place = tl.arange(0, WIDTH)
    pointer = base + tl.cast(first, tl.int64) * stride + (row[:, None] * stride + place[None, :])
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
def first_tiles(first_query, left_edge, reach, N: tl.constexpr, HAS_FAR: tl.constexpr):
    """Of the key tiles of a query tile: the first, and the first of the band."""
    first = 0
    if HAS_FAR:
        first = tl.maximum(first_query - reach + 1, 0) // N * N
    return first, left_edge // N * N


@triton.jit
def hide_beyond_reach(scores, column, key_column, reach):
    return tl.where(key_column > column - reach, scores, float("-inf"))


@triton.jit
def hide_earlier_units(
    scores, column, key_column, valid, memory_query, reach, length,
    HAS_VALID: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_FAR: tl.constexpr,
):  # fmt: skip
    """-inf in a tile of earlier units where a key is beyond reach or padding, or the query is of a memory unit."""
    if HAS_FAR:
        scores = hide_beyond_reach(scores, column, key_column, reach)
    if HAS_VALID:
        is_token = tl.load(valid + key_column, mask=key_column < length, other=0) != 0
        scores = tl.where(is_token, scores, float("-inf"))
    if HAS_MEMORY:
        scores = tl.where(memory_query == 0, scores, float("-inf"))
    return scores


@triton.jit
def band_scores(
    of_local, of_addressed, column, key_column, unit_start, local_from, own_bonus, valid, memory_query, reach, length,
    HAS_VALID: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_BONUS: tl.constexpr, HAS_FAR: tl.constexpr,
):  # fmt: skip
    """The pair rule on a tile of the band, of the products with both versions of the keys: scores, which keys are of
    the query's own unit, which are read local."""
    own_unit = key_column >= unit_start
    reads_local = key_column >= local_from
    scores = tl.where(reads_local, of_local, of_addressed)
    if HAS_BONUS:
        scores += tl.where(own_unit, own_bonus, 0.0)
    scores = tl.where(key_column <= column, scores, float("-inf"))
    if HAS_FAR:
        scores = hide_beyond_reach(scores, column, key_column, reach)
    if HAS_VALID:
        is_token = tl.load(valid + key_column, mask=key_column < length, other=0) != 0
        scores = tl.where(is_token, scores, float("-inf"))
    if HAS_MEMORY:
        scores = tl.where(own_unit | (memory_query == 0), scores, float("-inf"))
    return scores, own_unit, reads_local


@triton.jit
def unit_rows(
    start, spared, local_start, memory, bonus, column, length, scale,
    HAS_SPARED: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_BONUS: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """By query: where its unit begins, or what is spared with it, from where on it reads local keys, whether it is
    memory, its own unit's bonus. Beyond the end the last is read again, of which nothing comes.

    The bonus is given in the scale of plain products.
    """
    row = tl.minimum(column, length - 1)
    unit_start = tl.load((spared if HAS_SPARED else start) + row)
    memory_query = tl.zeros([M], tl.int8)
    if HAS_MEMORY:
        memory_query = tl.load(memory + row)
    own_bonus = tl.zeros([M], tl.float32)
    if HAS_BONUS:
        own_bonus = tl.load(bonus + row) / scale
    return unit_start, tl.load(local_start + row), memory_query, own_bonus
