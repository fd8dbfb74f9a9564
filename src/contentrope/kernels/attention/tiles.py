"""What the kernels of addressed attention have in common: rows and tiles, the running softmax, gradients of one tile.

A tile has M queries and N keys. Queries come from one row of the batch and one head, in order.

Where keys that lie ``reach`` or more to the left of a query are far for certain, they are read elsewhere
(:func:`contentrope.kernels.attention.ops.far_forward`); the kernels then begin with what was found there, and read no
pair twice.

Scores are plain products; ``factor`` turns them into powers of two, of which the hardware has the exponential. So the
logsumexp of a query (``lse``) is one to base two.

Kernels that go through keys have queries as the rows of their scores; the one that goes through queries has keys as
rows, so that it need not transpose what it multiplies with. The pair rule serves both: what belongs to queries is given
to it as a column or a row, ``[:, None]`` or ``[None, :]``, and what belongs to keys as the other.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def scheduled_tile(concurrent, tiles):
    """The head of a program, counted over the whole batch, and its tile, counted from the one with most to read.

    ``concurrent`` heads are scheduled together, tile by tile, before the next begin: all long tiles start early, so
    that no SM is left alone with one at the end, and the keys and values of so few heads stay in L2.
    """
    program = tl.program_id(0)
    first = program // (concurrent * tiles) * concurrent
    here = tl.minimum(concurrent, tl.num_programs(0) // tiles - first)
    order = program - first * tiles
    return first + order % here, order // here


@triton.jit
def scheduled_lane(concurrent, tiles, HEADS: tl.constexpr, GROUP: tl.constexpr):
    """Backward: batch, head of keys, member and tile of a program. Each head of keys has a lane of programs for itself
    (member 0) and one for every head of queries that shares it; the first tile of keys is as long as the last of
    queries. ``concurrent`` counts heads of keys."""
    kv_heads: tl.constexpr = HEADS // GROUP
    lanes: tl.constexpr = 1 + GROUP
    lane, order = scheduled_tile(concurrent * lanes, tiles)
    place = lane // lanes
    return (place // kv_heads).to(tl.int64), (place % kv_heads).to(tl.int64), lane % lanes, order


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
def far_rows(base, column, width: tl.constexpr, stride, reach, length, WIDTH: tl.constexpr):
    """Of what the far keys gave, the rows of some queries; zero for those that have no far keys."""
    row = tl.where(column >= reach, column - reach, length)
    return rows_of(base, row, width, stride, length - reach, WIDTH).to(tl.float32)


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
def unit_rows(
    start, local_start, memory, bonus, column, length, scale,
    HAS_MEMORY: tl.constexpr, HAS_BONUS: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """By query: where its unit begins, from where on it reads local keys, whether it is
    memory, its own unit's bonus. Beyond the end the last is read again, of which nothing comes.

    The bonus is given in the scale of plain products.
    """
    row = tl.minimum(column, length - 1)
    unit_start = tl.load(start + row)
    memory_query = tl.zeros([M], tl.int8)
    if HAS_MEMORY:
        memory_query = tl.load(memory + row)
    own_bonus = tl.zeros([M], tl.float32)
    if HAS_BONUS:
        own_bonus = tl.load(bonus + row) / scale
    return unit_start, tl.load(local_start + row), memory_query, own_bonus


@triton.jit
def absorb(scores, value, accumulated, total, largest, factor, PRECISION: tl.constexpr):
    """One more tile of keys: the running softmax, kept relative to the largest score so far."""
    new_largest = tl.maximum(largest, tl.max(scores, 1) * factor)
    # A query that has seen nothing yet has no largest score; zero keeps the differences finite or -inf.
    reference = tl.where(new_largest == float("-inf"), 0.0, new_largest)
    weights = tl.exp2(scores * factor - reference[:, None])
    fade = tl.exp2(largest - reference)
    accumulated = tl.dot(
        weights.to(value.dtype), value, accumulated * fade[:, None], input_precision=PRECISION, out_dtype=tl.float32
    )
    return accumulated, total * fade + tl.sum(weights, 1), new_largest


@triton.jit
def result_of_far_keys(
    far_out, far_lse, column, far_t, reach, length,
    DIM: tl.constexpr, WIDTH: tl.constexpr, HAS_FAR: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """What the running softmax begins with: nothing, or what the far keys gave as one tile, already summed up."""
    accumulated = tl.zeros([M, WIDTH], tl.float32)
    total = tl.zeros([M], tl.float32)
    largest = tl.full([M], float("-inf"), tl.float32)
    if HAS_FAR:
        has_far = (column >= reach) & (column < length)
        largest = tl.load(far_lse + column - reach, mask=has_far, other=float("-inf")) * LOG2_E
        total = tl.where(has_far, 1.0, 0.0)
        accumulated = far_rows(far_out, column, DIM, far_t, reach, length, WIDTH)
    return accumulated, total, largest


@triton.jit
def store_output(
    out, lse, column, accumulated, total, largest, out_t, length, DIM: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    sees_any = total > 0
    accumulated = accumulated / tl.where(sees_any, total, 1.0)[:, None]
    store_rows(out, column, accumulated, DIM, out_t, length, WIDTH)
    # Infinite where nothing was seen: every weight is zero then in the backward pass too.
    own_lse = tl.where(sees_any, largest + tl.log2(tl.where(sees_any, total, 1.0)), float("inf"))
    tl.store(lse + column, own_lse, mask=column < length)


@triton.jit
def gradients_of_scores(scores, values, grad_tile, lse, offset, factor, PRECISION: tl.constexpr):
    """Of a tile with queries as rows."""
    to_weights = tl.dot(grad_tile, tl.trans(values), input_precision=PRECISION)
    return tl.exp2(scores * factor - lse[:, None]) * (to_weights - offset[:, None])


@triton.jit
def to_query_of(scores, keys, values, grad_tile, lse, offset, to_query, factor, PRECISION: tl.constexpr):
    """One more tile of earlier units: what it adds to the gradient of the queries."""
    to_scores = gradients_of_scores(scores, values, grad_tile, lse, offset, factor, PRECISION)
    return tl.dot(to_scores.to(keys.dtype), keys, to_query, input_precision=PRECISION, out_dtype=tl.float32)


@triton.jit
def query_rows(
    queries, grads, row_lse, delta, first, query_t, grad_t, length,
    DIM: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Of M queries from ``first`` on: themselves, the gradient of their output, their logsumexp, their D.

    Beyond the end the last is read again, which is less to check in the inner loop; its logsumexp is infinite there.
    """
    row = tl.arange(0, M)
    there = tl.minimum(row, length - 1 - first)
    return (
        rows_inside(queries, first, there, DIM, query_t, WIDTH),
        rows_inside(grads, first, there, DIM, grad_t, WIDTH),
        tl.load(row_lse + first + row),
        tl.load(delta + first + row),
    )


@triton.jit
def to_keys_of(
    scores, query_tile, grad_tile, lse, offset, values, to_addressed, to_value, factor, PRECISION: tl.constexpr
):  # fmt: skip
    """One more tile of queries of later units: what it adds to the gradients of addressed keys and values."""
    to_weights = tl.dot(values, tl.trans(grad_tile), input_precision=PRECISION)
    weights = tl.exp2(scores * factor - lse[None, :])
    to_value = tl.dot(weights.to(grad_tile.dtype), grad_tile, to_value, input_precision=PRECISION, out_dtype=tl.float32)
    to_scores = (weights * (to_weights - offset[None, :])).to(query_tile.dtype)
    to_addressed = tl.dot(to_scores, query_tile, to_addressed, input_precision=PRECISION, out_dtype=tl.float32)
    return to_addressed, to_value
