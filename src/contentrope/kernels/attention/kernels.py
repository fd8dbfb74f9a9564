"""The kernels of addressed attention: tiles and the pair rule on them, then the forward, then the backward kernel.

A tile has M queries and N keys. Queries come from one row of the batch and one head, in order, so the unit of its first
query begins at or left of all others' (``left``). Keys left of that are earlier units for every query of the tile:
all pairs are visible and addressed, and there is no rule to evaluate. What lies between there and the diagonal, the
*band*, has both kinds.

Where no unit is longer than ``reach``, keys that lie ``reach`` or more to the left of a query are read elsewhere
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


# Forward: one program reads all keys of one tile of queries.


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


@triton.jit(do_not_specialize=["concurrent"])
def forward_kernel(
    query, local_key, addressed_key, value,
    start, left, until, spared, local_start, valid, memory, bonus, far_out, far_lse,
    out, lse,
    query_b, query_h, query_t, local_b, local_h, local_t, addressed_b, addressed_h, addressed_t,
    value_b, value_h, value_t, far_b, far_h, far_t, out_b, out_h, out_t,
    length, reach, concurrent, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    HAS_SPARED: tl.constexpr, HAS_VALID: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_BONUS: tl.constexpr,
    HAS_FAR: tl.constexpr, PRECISION: tl.constexpr, LENGTH_CLASS, M: tl.constexpr, N: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(length, M)
    place, order = scheduled_tile(concurrent, tiles)
    batch = (place // HEADS).to(tl.int64)
    head = (place % HEADS).to(tl.int64)
    begin = (tiles - 1 - order) * M
    column = begin + tl.arange(0, M)
    inside = column < length
    query_tile = rows_of(query + batch * query_b + head * query_h, column, DIM, query_t, length, WIDTH)
    local_key += batch * local_b + head // GROUP * local_h
    addressed_key += batch * addressed_b + head // GROUP * addressed_h
    value += batch * value_b + head // GROUP * value_h
    by_token = batch * length
    by_head = (batch * HEADS + head) * length
    by_spared = (batch * (HEADS // GROUP) + head // GROUP) * length
    unit_start, local_from, memory_query, own_bonus = unit_rows(
        start + by_token, spared + by_spared, local_start + by_token, memory + by_token, bonus + by_head, column,
        length, scale, HAS_SPARED, HAS_MEMORY, HAS_BONUS, M,
    )  # fmt: skip
    factor = scale * LOG2_E

    accumulated = tl.zeros([M, WIDTH], tl.float32)
    total = tl.zeros([M], tl.float32)
    largest = tl.full([M], float("-inf"), tl.float32)
    if HAS_FAR:
        # What the far keys gave is one more tile, already summed up.
        far_row = column - reach
        has_far = (far_row >= 0) & inside
        by_far = (batch * HEADS + head) * (length - reach)
        largest = tl.load(far_lse + by_far + far_row, mask=has_far, other=float("-inf")) * LOG2_E
        total = tl.where(has_far, 1.0, 0.0)
        seen = tl.where(has_far, far_row, length)
        accumulated = rows_of(far_out + batch * far_b + head * far_h, seen, DIM, far_t, length - reach, WIDTH).to(
            tl.float32
        )
    first, band = first_tiles(begin, tl.load(left + by_token + begin), reach, N, HAS_FAR)
    if HAS_MEMORY:
        if tl.min(memory_query.to(tl.int32)) == 1:
            first = band  # nobody here looks beyond its own unit
    for earlier in range(first, band, N):
        key_column = earlier + tl.arange(0, N)
        keys = rows_inside(addressed_key, earlier, tl.arange(0, N), DIM, addressed_t, WIDTH)
        scores = tl.dot(query_tile, tl.trans(keys), input_precision=PRECISION)
        scores = hide_earlier_units(
            scores, column[:, None], key_column[None, :], valid + by_token, memory_query[:, None], reach, length,
            HAS_VALID, HAS_MEMORY, HAS_FAR,
        )  # fmt: skip
        values = rows_inside(value, earlier, tl.arange(0, N), DIM, value_t, WIDTH)
        accumulated, total, largest = absorb(scores, values, accumulated, total, largest, factor, PRECISION)
    for near in tl.range(band, tl.minimum(begin + M, length), N, num_stages=BAND):
        key_column = near + tl.arange(0, N)
        addressed = rows_of(addressed_key, key_column, DIM, addressed_t, length, WIDTH)
        local = rows_of(local_key, key_column, DIM, local_t, length, WIDTH)
        scores, _, _ = band_scores(
            tl.dot(query_tile, tl.trans(local), input_precision=PRECISION),
            tl.dot(query_tile, tl.trans(addressed), input_precision=PRECISION),
            column[:, None], key_column[None, :], unit_start[:, None], local_from[:, None], own_bonus[:, None],
            valid + by_token, memory_query[:, None], reach, length, HAS_VALID, HAS_MEMORY, HAS_BONUS, HAS_FAR,
        )  # fmt: skip
        values = rows_of(value, key_column, DIM, value_t, length, WIDTH)
        accumulated, total, largest = absorb(scores, values, accumulated, total, largest, factor, PRECISION)

    sees_any = total > 0
    accumulated = accumulated / tl.where(sees_any, total, 1.0)[:, None]
    store_rows(out + batch * out_b + head * out_h, column, accumulated, DIM, out_t, length, WIDTH)
    # Infinite where nothing was seen: every weight is zero then in the backward pass too.
    own_lse = tl.where(sees_any, largest + tl.log2(tl.where(sees_any, total, 1.0)), float("inf"))
    tl.store(lse + by_head + column, own_lse, mask=inside)


# Backward. One launch has two kinds of programs, for tiles of queries and for tiles of keys; no two write to the same
# place.
#
# With P the weights, dP = dO V' and D = sum(dO O): the gradient of the scores is dS = P (dP - D). It goes to the local
# or to the addressed keys, whichever a pair was read with; to the own unit's bonus goes its sum over that unit.
#
# Tiles differ in how much they read, and a GPU waits for the longest: started together, programs of one kind fill the
# time in which the other's last ones run.


@triton.jit
def to_query_of(scores, keys, values, grad_tile, lse, offset, to_query, factor, PRECISION: tl.constexpr):
    """One more tile of earlier units: what it adds to the gradient of the queries."""
    to_weights = tl.dot(grad_tile, tl.trans(values), input_precision=PRECISION)
    to_scores = tl.exp2(scores * factor - lse[:, None]) * (to_weights - offset[:, None])
    return tl.dot(to_scores.to(keys.dtype), keys, to_query, input_precision=PRECISION, out_dtype=tl.float32)


@triton.jit
def query_gradients(
    batch, head, begin,
    query, local_key, addressed_key, value, grad,
    start, left, spared, local_start, valid, memory, bonus, row_lse, delta, far_grad,
    query_grad, bonus_grad,
    query_b, query_h, query_t, local_b, local_h, local_t, addressed_b, addressed_h, addressed_t,
    value_b, value_h, value_t, grad_b, grad_h, grad_t, far_b, far_h, far_t,
    query_grad_b, query_grad_h, query_grad_t,
    length, rows, reach, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    HAS_SPARED: tl.constexpr, HAS_VALID: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_BONUS: tl.constexpr,
    HAS_FAR: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """The M queries of a head from ``begin`` on; N keys at a time."""
    column = begin + tl.arange(0, M)
    query_tile = rows_of(query + batch * query_b + head * query_h, column, DIM, query_t, length, WIDTH)
    grad_tile = rows_of(grad + batch * grad_b + head * grad_h, column, DIM, grad_t, length, WIDTH)
    local_key += batch * local_b + head // GROUP * local_h
    addressed_key += batch * addressed_b + head // GROUP * addressed_h
    value += batch * value_b + head // GROUP * value_h
    by_token = batch * length
    by_head = (batch * HEADS + head) * length
    by_spared = (batch * (HEADS // GROUP) + head // GROUP) * length
    unit_start, local_from, memory_query, own_bonus = unit_rows(
        start + by_token, spared + by_spared, local_start + by_token, memory + by_token, bonus + by_head, column,
        length, scale, HAS_SPARED, HAS_MEMORY, HAS_BONUS, M,
    )  # fmt: skip
    by_row = (batch * HEADS + head) * rows
    lse = tl.load(row_lse + by_row + column)
    offset = tl.load(delta + by_row + column)
    factor = scale * LOG2_E

    to_query = tl.zeros([M, WIDTH], tl.float32)
    to_bonus = tl.zeros([M], tl.float32)
    first, band = first_tiles(begin, tl.load(left + by_token + begin), reach, N, HAS_FAR)
    if HAS_MEMORY:
        if tl.min(memory_query.to(tl.int32)) == 1:
            first = band
    for earlier in range(first, band, N):
        key_column = earlier + tl.arange(0, N)
        keys = rows_inside(addressed_key, earlier, tl.arange(0, N), DIM, addressed_t, WIDTH)
        values = rows_inside(value, earlier, tl.arange(0, N), DIM, value_t, WIDTH)
        scores = tl.dot(query_tile, tl.trans(keys), input_precision=PRECISION)
        scores = hide_earlier_units(
            scores, column[:, None], key_column[None, :], valid + by_token, memory_query[:, None], reach, length,
            HAS_VALID, HAS_MEMORY, HAS_FAR,
        )  # fmt: skip
        to_query = to_query_of(scores, keys, values, grad_tile, lse, offset, to_query, factor, PRECISION)
    for near in tl.range(band, tl.minimum(begin + M, length), N, num_stages=BAND):
        key_column = near + tl.arange(0, N)
        addressed = rows_of(addressed_key, key_column, DIM, addressed_t, length, WIDTH)
        local = rows_of(local_key, key_column, DIM, local_t, length, WIDTH)
        scores, own_unit, reads_local = band_scores(
            tl.dot(query_tile, tl.trans(local), input_precision=PRECISION),
            tl.dot(query_tile, tl.trans(addressed), input_precision=PRECISION),
            column[:, None], key_column[None, :], unit_start[:, None], local_from[:, None], own_bonus[:, None],
            valid + by_token, memory_query[:, None], reach, length, HAS_VALID, HAS_MEMORY, HAS_BONUS, HAS_FAR,
        )  # fmt: skip
        values = rows_of(value, key_column, DIM, value_t, length, WIDTH)
        to_weights = tl.dot(grad_tile, tl.trans(values), input_precision=PRECISION)
        to_scores = tl.exp2(scores * factor - lse[:, None]) * (to_weights - offset[:, None])
        if HAS_BONUS:
            to_bonus += tl.sum(tl.where(own_unit, to_scores, 0.0), 1)
        to_local = tl.where(reads_local, to_scores, 0.0).to(local.dtype)
        to_addressed = tl.where(reads_local, 0.0, to_scores).to(local.dtype)
        to_query = tl.dot(to_local, local, to_query, input_precision=PRECISION, out_dtype=tl.float32)
        to_query = tl.dot(to_addressed, addressed, to_query, input_precision=PRECISION, out_dtype=tl.float32)

    to_query *= scale
    if HAS_FAR:
        far_row = tl.where(column >= reach, column - reach, length)
        to_query += rows_of(far_grad + batch * far_b + head * far_h, far_row, DIM, far_t, length - reach, WIDTH).to(
            tl.float32
        )
    query_grad += batch * query_grad_b + head * query_grad_h
    store_rows(query_grad, column, to_query, DIM, query_grad_t, length, WIDTH)
    if HAS_BONUS:
        tl.store(bonus_grad + by_head + column, to_bonus, mask=column < length)


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


@triton.jit
def to_keys_of_band(
    first, beyond, key_column, local, addressed, values, to_local, to_addressed, to_value,
    queries, grads, query_t, grad_t, row_lse, delta, start, spared, local_start, valid, memory, bonus,
    length, reach, scale, LOCAL: tl.constexpr, ADDRESSED: tl.constexpr,
    DIM: tl.constexpr, WIDTH: tl.constexpr,
    HAS_SPARED: tl.constexpr, HAS_VALID: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_BONUS: tl.constexpr,
    HAS_FAR: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """The tiles of one head's queries that may read the keys either way: what pairs that are read LOCAL, or ADDRESSED,
    or those of both kinds, add to the gradients."""
    factor = scale * LOG2_E
    for tile in tl.range(first, beyond, num_stages=BAND):
        column = tile * M + tl.arange(0, M)
        query_tile, grad_tile, lse, offset = query_rows(
            queries, grads, row_lse, delta, tile * M, query_t, grad_t, length, DIM, WIDTH, M
        )
        unit_start, local_from, memory_query, own_bonus = unit_rows(
            start, spared, local_start, memory, bonus, column, length, scale, HAS_SPARED, HAS_MEMORY, HAS_BONUS, M
        )
        of_local = float("-inf")  # weighs nothing
        of_addressed = float("-inf")
        if LOCAL:
            of_local = tl.dot(local, tl.trans(query_tile), input_precision=PRECISION)
        if ADDRESSED:
            of_addressed = tl.dot(addressed, tl.trans(query_tile), input_precision=PRECISION)
        scores, _, reads_local = band_scores(
            of_local, of_addressed,
            column[None, :], key_column[:, None], unit_start[None, :], local_from[None, :], own_bonus[None, :],
            valid, memory_query[None, :], reach, length, HAS_VALID, HAS_MEMORY, HAS_BONUS, HAS_FAR,
        )  # fmt: skip
        weights = tl.exp2(scores * factor - lse[None, :])
        to_value = tl.dot(
            weights.to(grad_tile.dtype), grad_tile, to_value, input_precision=PRECISION, out_dtype=tl.float32
        )
        to_weights = tl.dot(values, tl.trans(grad_tile), input_precision=PRECISION)
        to_scores = weights * (to_weights - offset[None, :])
        if LOCAL:
            by_local = tl.where(reads_local, to_scores, 0.0).to(query_tile.dtype)
            to_local = tl.dot(by_local, query_tile, to_local, input_precision=PRECISION, out_dtype=tl.float32)
        if ADDRESSED:
            by_address = tl.where(reads_local, 0.0, to_scores).to(query_tile.dtype)
            to_addressed = tl.dot(by_address, query_tile, to_addressed, input_precision=PRECISION, out_dtype=tl.float32)
    return to_local, to_addressed, to_value


@triton.jit
def key_gradients(
    batch, kv_head, begin,
    query, local_key, addressed_key, value, grad,
    start, until, spared, local_start, valid, memory, bonus, row_lse, delta, far_key_grad, far_value_grad,
    local_grad, addressed_grad, value_grad,
    query_b, query_h, query_t, local_b, local_h, local_t, addressed_b, addressed_h, addressed_t,
    value_b, value_h, value_t, grad_b, grad_h, grad_t, far_key_b, far_key_h, far_key_t,
    far_value_b, far_value_h, far_value_t, key_grad_b, key_grad_h, key_grad_t, value_grad_b, value_grad_h, value_grad_t,
    length, rows, reach, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    HAS_SPARED: tl.constexpr, HAS_VALID: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_BONUS: tl.constexpr,
    HAS_FAR: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """The N keys and values from ``begin`` on; all query heads that share them, one after the other, M queries at a
    time."""
    kv_heads: tl.constexpr = HEADS // GROUP
    key_column = begin + tl.arange(0, N)
    local = rows_of(local_key + batch * local_b + kv_head * local_h, key_column, DIM, local_t, length, WIDTH)
    addressed = rows_of(
        addressed_key + batch * addressed_b + kv_head * addressed_h, key_column, DIM, addressed_t, length, WIDTH
    )
    values = rows_of(value + batch * value_b + kv_head * value_h, key_column, DIM, value_t, length, WIDTH)
    by_token = batch * length
    by_spared = (batch * kv_heads + kv_head) * length
    factor = scale * LOG2_E
    last = tl.cdiv(length, M)
    if HAS_FAR:
        last = tl.minimum(last, tl.cdiv(begin + N - 1 + reach, M))
    diagonal = begin // M
    later = tl.minimum(tl.cdiv(tl.load(until + by_token + tl.minimum(begin + N, length) - 1), M), last)
    no_memory = tl.zeros([M], tl.int8)

    to_local = tl.zeros([N, WIDTH], tl.float32)
    to_addressed = tl.zeros([N, WIDTH], tl.float32)
    to_value = tl.zeros([N, WIDTH], tl.float32)
    # For wide heads three gradients are more than the registers hold: the band is gone through twice.
    TWICE: tl.constexpr = WIDTH > 64
    to_here = batch * key_grad_b + kv_head * key_grad_h
    for time in tl.static_range(2 if TWICE else 1):
        for member in range(GROUP):
            head = kv_head * GROUP + member
            by_head = (batch * HEADS + head) * length
            by_row = (batch * HEADS + head) * rows
            to_local, to_addressed, to_value = to_keys_of_band(
                diagonal, later, key_column, local, addressed, values, to_local, to_addressed, to_value,
                query + batch * query_b + head * query_h, grad + batch * grad_b + head * grad_h, query_t, grad_t,
                row_lse + by_row, delta + by_row, start + by_token, spared + by_spared, local_start + by_token,
                valid + by_token, memory + by_token, bonus + by_head, length, reach, scale,
                time == 0, time == 1 or not TWICE,
                DIM, WIDTH, HAS_SPARED, HAS_VALID, HAS_MEMORY, HAS_BONUS, HAS_FAR, PRECISION, M, BAND,
            )  # fmt: skip
        if time == 0:
            # Nothing else is read locally: stored now, this leaves its registers to what follows.
            store_rows(local_grad + to_here, key_column, to_local * scale, DIM, key_grad_t, length, WIDTH)
    for member in range(GROUP):
        head = kv_head * GROUP + member
        queries = query + batch * query_b + head * query_h
        grads = grad + batch * grad_b + head * grad_h
        by_row = (batch * HEADS + head) * rows
        for tile in range(later, last):
            column = tile * M + tl.arange(0, M)
            query_tile, grad_tile, lse, offset = query_rows(
                queries, grads, row_lse + by_row, delta + by_row, tile * M, query_t, grad_t, length, DIM, WIDTH, M
            )
            memory_query = no_memory
            if HAS_MEMORY:
                memory_query = tl.load(memory + by_token + tl.minimum(column, length - 1))
            scores = tl.dot(addressed, tl.trans(query_tile), input_precision=PRECISION)
            scores = hide_earlier_units(
                scores, column[None, :], key_column[:, None], valid + by_token, memory_query[None, :], reach, length,
                HAS_VALID, HAS_MEMORY, HAS_FAR,
            )  # fmt: skip
            to_addressed, to_value = to_keys_of(
                scores, query_tile, grad_tile, lse, offset, values, to_addressed, to_value, factor, PRECISION
            )

    to_addressed *= scale
    if HAS_FAR:
        far_key_grad += batch * far_key_b + kv_head * far_key_h
        far_value_grad += batch * far_value_b + kv_head * far_value_h
        to_addressed += rows_of(far_key_grad, key_column, DIM, far_key_t, length - reach, WIDTH).to(tl.float32)
        to_value += rows_of(far_value_grad, key_column, DIM, far_value_t, length - reach, WIDTH).to(tl.float32)
    store_rows(addressed_grad + to_here, key_column, to_addressed, DIM, key_grad_t, length, WIDTH)
    value_grad += batch * value_grad_b + kv_head * value_grad_h
    store_rows(value_grad, key_column, to_value, DIM, value_grad_t, length, WIDTH)


@triton.jit
def prepare_kernel(
    grad, out, lse, row_lse, delta, grad_b, grad_h, grad_t, out_b, out_h, out_t, length, rows,
    HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """D of some queries of one head, and their logsumexp. There are more ``rows`` than queries, as tiles are read
    whole: an infinite logsumexp lets them weigh nothing, so that nobody needs to check in an inner loop."""
    tiles = rows // ROWS
    batch = (tl.program_id(0) // tiles // HEADS).to(tl.int64)
    head = (tl.program_id(0) // tiles % HEADS).to(tl.int64)
    column = tl.program_id(0) % tiles * ROWS + tl.arange(0, ROWS)
    inside = column < length
    grads = rows_of(grad + batch * grad_b + head * grad_h, column, DIM, grad_t, length, WIDTH)
    outs = rows_of(out + batch * out_b + head * out_h, column, DIM, out_t, length, WIDTH)
    of_head = batch * HEADS + head
    known = tl.load(lse + of_head * length + column, mask=inside, other=float("inf"))
    tl.store(row_lse + of_head * rows + column, known)
    tl.store(delta + of_head * rows + column, tl.sum(grads.to(tl.float32) * outs.to(tl.float32), 1))


@triton.jit(do_not_specialize=["concurrent"])
def backward_kernel(
    query, local_key, addressed_key, value, grad,
    start, left, until, spared, local_start, valid, memory, bonus, row_lse, delta,
    far_query_grad, far_key_grad, far_value_grad, query_grad, bonus_grad, local_grad, addressed_grad, value_grad,
    query_b, query_h, query_t, local_b, local_h, local_t, addressed_b, addressed_h, addressed_t,
    value_b, value_h, value_t, grad_b, grad_h, grad_t, far_query_b, far_query_h, far_query_t,
    far_key_b, far_key_h, far_key_t, far_value_b, far_value_h, far_value_t,
    query_grad_b, query_grad_h, query_grad_t, key_grad_b, key_grad_h, key_grad_t,
    value_grad_b, value_grad_h, value_grad_t,
    length, rows, reach, concurrent, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    HAS_SPARED: tl.constexpr, HAS_VALID: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_BONUS: tl.constexpr,
    HAS_FAR: tl.constexpr, PRECISION: tl.constexpr, LENGTH_CLASS,
    ROWS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """Each head of keys has a lane of programs for itself and one for every head of queries that shares it; the first
    tile of keys is as long as the last of queries. ``concurrent`` counts heads of keys."""
    lanes: tl.constexpr = 1 + GROUP
    kv_heads: tl.constexpr = HEADS // GROUP
    tiles = tl.cdiv(length, ROWS)
    lane, order = scheduled_tile(concurrent * lanes, tiles)
    place = lane // lanes
    member = lane % lanes
    batch = (place // kv_heads).to(tl.int64)
    kv_head = (place % kv_heads).to(tl.int64)
    if member == 0:
        key_gradients(
            batch, kv_head, order * ROWS,
            query, local_key, addressed_key, value, grad,
            start, until, spared, local_start, valid, memory, bonus, row_lse, delta, far_key_grad, far_value_grad,
            local_grad, addressed_grad, value_grad,
            query_b, query_h, query_t, local_b, local_h, local_t, addressed_b, addressed_h, addressed_t,
            value_b, value_h, value_t, grad_b, grad_h, grad_t, far_key_b, far_key_h, far_key_t,
            far_value_b, far_value_h, far_value_t, key_grad_b, key_grad_h, key_grad_t,
            value_grad_b, value_grad_h, value_grad_t,
            length, rows, reach, scale, HEADS, GROUP, DIM, WIDTH,
            HAS_SPARED, HAS_VALID, HAS_MEMORY, HAS_BONUS, HAS_FAR, PRECISION, M, ROWS, BAND,
        )  # fmt: skip
    else:
        query_gradients(
            batch, kv_head * GROUP + member - 1, (tiles - 1 - order) * ROWS,
            query, local_key, addressed_key, value, grad,
            start, left, spared, local_start, valid, memory, bonus, row_lse, delta, far_query_grad,
            query_grad, bonus_grad,
            query_b, query_h, query_t, local_b, local_h, local_t, addressed_b, addressed_h, addressed_t,
            value_b, value_h, value_t, grad_b, grad_h, grad_t, far_query_b, far_query_h, far_query_t,
            query_grad_b, query_grad_h, query_grad_t,
            length, rows, reach, scale, HEADS, GROUP, DIM, WIDTH,
            HAS_SPARED, HAS_VALID, HAS_MEMORY, HAS_BONUS, HAS_FAR, PRECISION, ROWS, N, BAND,
        )  # fmt: skip
