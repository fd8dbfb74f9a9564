"""The kernels of addressed attention without a window: the pair rule, then the forward, then the backward kernel.

The unit of a tile's first query begins at or left of all others' (``left``). Keys left of that are earlier units for
every query of the tile: all pairs are visible and addressed, and there is no rule to evaluate. What lies between there
and the diagonal, the *band*, has both kinds.
"""

from __future__ import annotations

import triton
import triton.language as tl

from contentrope.kernels.attention.tiles import (
    LOG2_E,
    absorb,
    far_rows,
    hide_beyond_reach,
    hide_earlier_units,
    query_rows,
    result_of_far_keys,
    rows_inside,
    rows_of,
    scheduled_lane,
    scheduled_tile,
    store_output,
    store_rows,
    to_keys_of,
    to_query_of,
    unit_rows,
)


@triton.jit
def first_tiles(first_query, left_edge, reach, N: tl.constexpr, HAS_FAR: tl.constexpr):
    """Of the key tiles of a query tile: the first, and the first of the band."""
    first = 0
    if HAS_FAR:
        first = tl.maximum(first_query - reach + 1, 0) // N * N
    return first, left_edge // N * N


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


# Forward: one program reads all keys of one tile of queries.


@triton.jit(do_not_specialize=["concurrent"])
def forward_kernel(
    query, local_key, addressed_key, value,
    start, left, until, local_start, valid, memory, bonus, far_out, far_lse,
    out, lse,
    query_b, query_h, query_t, local_b, local_h, local_t, addressed_b, addressed_h, addressed_t,
    value_b, value_h, value_t, far_b, far_h, far_t, out_b, out_h, out_t,
    length, reach, concurrent, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    HAS_VALID: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_BONUS: tl.constexpr,
    HAS_FAR: tl.constexpr, PRECISION: tl.constexpr, LENGTH_CLASS, M: tl.constexpr, N: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(length, M)
    place, order = scheduled_tile(concurrent, tiles)
    batch = (place // HEADS).to(tl.int64)
    head = (place % HEADS).to(tl.int64)
    begin = (tiles - 1 - order) * M
    column = begin + tl.arange(0, M)
    query_tile = rows_of(query + batch * query_b + head * query_h, column, DIM, query_t, length, WIDTH)
    local_key += batch * local_b + head // GROUP * local_h
    addressed_key += batch * addressed_b + head // GROUP * addressed_h
    value += batch * value_b + head // GROUP * value_h
    by_token = batch * length
    by_head = (batch * HEADS + head) * length
    unit_start, local_from, memory_query, own_bonus = unit_rows(
        start + by_token, local_start + by_token, memory + by_token, bonus + by_head, column,
        length, scale, HAS_MEMORY, HAS_BONUS, M,
    )  # fmt: skip
    factor = scale * LOG2_E

    accumulated, total, largest = result_of_far_keys(
        far_out + batch * far_b + head * far_h, far_lse + (batch * HEADS + head) * (length - reach), column,
        far_t, reach, length, DIM, WIDTH, HAS_FAR, M,
    )  # fmt: skip
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

    store_output(
        out + batch * out_b + head * out_h,
        lse + by_head,
        column,
        accumulated,
        total,
        largest,
        out_t,
        length,
        DIM,
        WIDTH,
    )


# Backward. One launch has two kinds of programs, for tiles of queries and for tiles of keys; no two write to the same
# place.
#
# With P the weights, dP = dO V' and D = sum(dO O): the gradient of the scores is dS = P (dP - D). It goes to the local
# or to the addressed keys, whichever a pair was read with; to the own unit's bonus goes its sum over that unit.
#
# Tiles differ in how much they read, and a GPU waits for the longest: started together, programs of one kind fill the
# time in which the other's last ones run.


@triton.jit
def query_gradients(
    batch, head, begin,
    query, local_key, addressed_key, value, grad,
    start, left, local_start, valid, memory, bonus, row_lse, delta, far_grad,
    query_grad, bonus_grad,
    query_b, query_h, query_t, local_b, local_h, local_t, addressed_b, addressed_h, addressed_t,
    value_b, value_h, value_t, grad_b, grad_h, grad_t, far_b, far_h, far_t,
    query_grad_b, query_grad_h, query_grad_t,
    length, rows, reach, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    HAS_VALID: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_BONUS: tl.constexpr,
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
    unit_start, local_from, memory_query, own_bonus = unit_rows(
        start + by_token, local_start + by_token, memory + by_token, bonus + by_head, column,
        length, scale, HAS_MEMORY, HAS_BONUS, M,
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
        to_query += far_rows(far_grad + batch * far_b + head * far_h, column, DIM, far_t, reach, length, WIDTH)
    query_grad += batch * query_grad_b + head * query_grad_h
    store_rows(query_grad, column, to_query, DIM, query_grad_t, length, WIDTH)
    if HAS_BONUS:
        tl.store(bonus_grad + by_head + column, to_bonus, mask=column < length)


@triton.jit
def to_keys_of_band(
    first, beyond, key_column, local, addressed, values, to_local, to_addressed, to_value,
    queries, grads, query_t, grad_t, row_lse, delta, start, local_start, valid, memory, bonus,
    length, reach, scale, LOCAL: tl.constexpr, ADDRESSED: tl.constexpr,
    DIM: tl.constexpr, WIDTH: tl.constexpr,
    HAS_VALID: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_BONUS: tl.constexpr,
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
            start, local_start, memory, bonus, column, length, scale, HAS_MEMORY, HAS_BONUS, M
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
    start, until, local_start, valid, memory, bonus, row_lse, delta, far_key_grad, far_value_grad,
    local_grad, addressed_grad, value_grad,
    query_b, query_h, query_t, local_b, local_h, local_t, addressed_b, addressed_h, addressed_t,
    value_b, value_h, value_t, grad_b, grad_h, grad_t, far_key_b, far_key_h, far_key_t,
    far_value_b, far_value_h, far_value_t, key_grad_b, key_grad_h, key_grad_t, value_grad_b, value_grad_h, value_grad_t,
    length, rows, reach, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    HAS_VALID: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_BONUS: tl.constexpr,
    HAS_FAR: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """The N keys and values from ``begin`` on; all query heads that share them, one after the other, M queries at a
    time."""
    key_column = begin + tl.arange(0, N)
    local = rows_of(local_key + batch * local_b + kv_head * local_h, key_column, DIM, local_t, length, WIDTH)
    addressed = rows_of(
        addressed_key + batch * addressed_b + kv_head * addressed_h, key_column, DIM, addressed_t, length, WIDTH
    )
    values = rows_of(value + batch * value_b + kv_head * value_h, key_column, DIM, value_t, length, WIDTH)
    by_token = batch * length
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
                row_lse + by_row, delta + by_row, start + by_token, local_start + by_token,
                valid + by_token, memory + by_token, bonus + by_head, length, reach, scale,
                time == 0, time == 1 or not TWICE,
                DIM, WIDTH, HAS_VALID, HAS_MEMORY, HAS_BONUS, HAS_FAR, PRECISION, M, BAND,
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
    start, left, until, local_start, valid, memory, bonus, row_lse, delta,
    far_query_grad, far_key_grad, far_value_grad, query_grad, bonus_grad, local_grad, addressed_grad, value_grad,
    query_b, query_h, query_t, local_b, local_h, local_t, addressed_b, addressed_h, addressed_t,
    value_b, value_h, value_t, grad_b, grad_h, grad_t, far_query_b, far_query_h, far_query_t,
    far_key_b, far_key_h, far_key_t, far_value_b, far_value_h, far_value_t,
    query_grad_b, query_grad_h, query_grad_t, key_grad_b, key_grad_h, key_grad_t,
    value_grad_b, value_grad_h, value_grad_t,
    length, rows, reach, concurrent, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    HAS_VALID: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_BONUS: tl.constexpr,
    HAS_FAR: tl.constexpr, PRECISION: tl.constexpr, LENGTH_CLASS,
    ROWS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(length, ROWS)
    batch, kv_head, member, order = scheduled_lane(concurrent, tiles, HEADS, GROUP)
    if member == 0:
        key_gradients(
            batch, kv_head, order * ROWS,
            query, local_key, addressed_key, value, grad,
            start, until, local_start, valid, memory, bonus, row_lse, delta, far_key_grad, far_value_grad,
            local_grad, addressed_grad, value_grad,
            query_b, query_h, query_t, local_b, local_h, local_t, addressed_b, addressed_h, addressed_t,
            value_b, value_h, value_t, grad_b, grad_h, grad_t, far_key_b, far_key_h, far_key_t,
            far_value_b, far_value_h, far_value_t, key_grad_b, key_grad_h, key_grad_t,
            value_grad_b, value_grad_h, value_grad_t,
            length, rows, reach, scale, HEADS, GROUP, DIM, WIDTH,
            HAS_VALID, HAS_MEMORY, HAS_BONUS, HAS_FAR, PRECISION, M, ROWS, BAND,
        )  # fmt: skip
    else:
        query_gradients(
            batch, kv_head * GROUP + member - 1, (tiles - 1 - order) * ROWS,
            query, local_key, addressed_key, value, grad,
            start, left, local_start, valid, memory, bonus, row_lse, delta, far_query_grad,
            query_grad, bonus_grad,
            query_b, query_h, query_t, local_b, local_h, local_t, addressed_b, addressed_h, addressed_t,
            value_b, value_h, value_t, grad_b, grad_h, grad_t, far_query_b, far_query_h, far_query_t,
            query_grad_b, query_grad_h, query_grad_t,
            length, rows, reach, scale, HEADS, GROUP, DIM, WIDTH,
            HAS_VALID, HAS_MEMORY, HAS_BONUS, HAS_FAR, PRECISION, ROWS, N, BAND,
        )  # fmt: skip
