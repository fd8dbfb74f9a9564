"""The kernels of addressed attention under a near window: who reads what, then the forward, then the backward kernel.

Queries and keys come in two versions each. A query reads near keys from the column ``near_from`` on, with its near
version, and those left of it far, addressed, with its far version. For a tile of queries keys lie in four stretches:

    first .. mixed      far for all: both in their far version, no rule to evaluate
    mixed .. near       where the windows of its queries begin: far for some, near for others
    near .. diagonal    near for all: as in plain attention, nothing is hidden
    diagonal .. end     near, up to the query itself

The far versions are gone through before the near ones, and the mixed stretch with both, each time without the pairs of
the other. So no loop needs both products, nor registers for both gradients. And a query's sums are taken in an order
that does not depend on where other queries' windows begin: what comes later leaves it alone to the last bit.

Padding and memory units (BY_PAIR) are hidden pair by pair: the mixed stretch reaches to the end then.
"""

from __future__ import annotations

import triton
import triton.language as tl

from contentrope.kernels.attention.tiles import (
    LOG2_E,
    absorb,
    far_rows,
    gradients_of_scores,
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
    unit_rows,
)


@triton.jit
def key_stretches(
    begin, end, left_edge, near_from, memory_query, reach,
    HAS_MEMORY: tl.constexpr, HAS_FAR: tl.constexpr, BY_PAIR: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """For the queries of a tile: the columns ``first``, ``mixed``, ``near``, ``diagonal``, all multiples of N."""
    first = 0
    if HAS_FAR:
        first = tl.maximum(begin - reach + 1, 0) // N * N
    mixed = left_edge // N * N
    if HAS_MEMORY:
        if tl.min(memory_query.to(tl.int32)) == 1:
            first = mixed  # nobody here looks beyond its own unit
    near = tl.cdiv(end, N) * N
    diagonal = near
    if not BY_PAIR:
        near = tl.cdiv(tl.max(near_from, 0), N) * N
        diagonal = tl.maximum(begin // N * N, near)
    return first, mixed, near, diagonal


@triton.jit
def hide_other_version(
    scores, column, key_column, unit_start, near_from, valid, memory, memory_query, reach, length, NEAR: tl.constexpr,
    HAS_VALID: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_FAR: tl.constexpr,
):  # fmt: skip
    """The pair rule: -inf where a pair is not read in this version, or not at all."""
    is_near = key_column >= near_from
    is_seen = key_column <= column
    if HAS_MEMORY:
        own_unit = key_column >= unit_start
        plain_key = tl.load(memory + key_column, mask=key_column < length, other=0) == 0
        is_near = is_near & (own_unit | plain_key)
        is_seen = is_seen & (own_unit | (memory_query == 0))
    if HAS_VALID:
        is_seen = is_seen & (tl.load(valid + key_column, mask=key_column < length, other=0) != 0)
    if NEAR:
        is_seen = is_seen & is_near
    else:
        is_seen = is_seen & (is_near == 0)
        if HAS_FAR:
            is_seen = is_seen & (key_column > column - reach)
    return tl.where(is_seen, scores, float("-inf"))


# Forward: one program reads all keys of one tile of queries.


@triton.jit
def read_all(
    accumulated, total, largest, query_tile, key, value, first, beyond,
    column, valid, memory_query, key_t, value_t, reach, length, factor, NEAR: tl.constexpr,
    DIM: tl.constexpr, WIDTH: tl.constexpr, HAS_VALID: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_FAR: tl.constexpr,
    PRECISION: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Tiles of keys that all queries read in this version."""
    for tile in range(first, beyond, N):
        keys = rows_inside(key, tile, tl.arange(0, N), DIM, key_t, WIDTH)
        scores = tl.dot(query_tile, tl.trans(keys), input_precision=PRECISION)
        if not NEAR:
            key_column = tile + tl.arange(0, N)
            scores = hide_earlier_units(
                scores, column[:, None], key_column[None, :], valid, memory_query[:, None], reach, length,
                HAS_VALID, HAS_MEMORY, HAS_FAR,
            )  # fmt: skip
        values = rows_inside(value, tile, tl.arange(0, N), DIM, value_t, WIDTH)
        accumulated, total, largest = absorb(scores, values, accumulated, total, largest, factor, PRECISION)
    return accumulated, total, largest


@triton.jit
def read_some(
    accumulated, total, largest, query_tile, key, value, first, beyond,
    column, unit_start, near_from, valid, memory, memory_query, key_t, value_t, reach, length, factor,
    NEAR: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    HAS_VALID: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_FAR: tl.constexpr,
    PRECISION: tl.constexpr, N: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """Tiles of keys of which only some pairs are read in this version."""
    for tile in tl.range(first, beyond, N, num_stages=BAND):
        key_column = tile + tl.arange(0, N)
        keys = rows_of(key, key_column, DIM, key_t, length, WIDTH)
        scores = hide_other_version(
            tl.dot(query_tile, tl.trans(keys), input_precision=PRECISION),
            column[:, None], key_column[None, :], unit_start[:, None], near_from[:, None],
            valid, memory, memory_query[:, None], reach, length, NEAR, HAS_VALID, HAS_MEMORY, HAS_FAR,
        )  # fmt: skip
        values = rows_of(value, key_column, DIM, value_t, length, WIDTH)
        accumulated, total, largest = absorb(scores, values, accumulated, total, largest, factor, PRECISION)
    return accumulated, total, largest


@triton.jit(do_not_specialize=["concurrent"])
def window_forward_kernel(
    query, local_key, addressed_key, value, far_query,
    start, left, until, local_start, valid, memory, bonus, far_out, far_lse,
    out, lse,
    query_b, query_h, query_t, local_b, local_h, local_t, addressed_b, addressed_h, addressed_t,
    value_b, value_h, value_t, far_query_b, far_query_h, far_query_t, far_b, far_h, far_t, out_b, out_h, out_t,
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
    local_key += batch * local_b + head // GROUP * local_h
    addressed_key += batch * addressed_b + head // GROUP * addressed_h
    value += batch * value_b + head // GROUP * value_h
    by_token = batch * length
    by_head = (batch * HEADS + head) * length
    unit_start, near_from, memory_query, near_bonus = unit_rows(
        start + by_token, local_start + by_token, memory + by_token, bonus + by_head, column,
        length, scale, HAS_MEMORY, HAS_BONUS, M,
    )  # fmt: skip
    factor = scale * LOG2_E
    valid += by_token
    memory += by_token
    BY_PAIR: tl.constexpr = HAS_VALID or HAS_MEMORY
    end = tl.minimum(begin + M, length)
    first, mixed, near, diagonal = key_stretches(
        begin, end, tl.load(left + by_token + begin), near_from, memory_query, reach, HAS_MEMORY, HAS_FAR, BY_PAIR, N
    )

    accumulated, total, largest = result_of_far_keys(
        far_out + batch * far_b + head * far_h, far_lse + (batch * HEADS + head) * (length - reach), column,
        far_t, reach, length, DIM, WIDTH, HAS_FAR, M,
    )  # fmt: skip
    far_tile = rows_of(far_query + batch * far_query_b + head * far_query_h, column, DIM, far_query_t, length, WIDTH)
    accumulated, total, largest = read_all(
        accumulated, total, largest, far_tile, addressed_key, value, first, mixed,
        column, valid, memory_query, addressed_t, value_t, reach, length, factor, False,
        DIM, WIDTH, HAS_VALID, HAS_MEMORY, HAS_FAR, PRECISION, N,
    )  # fmt: skip
    accumulated, total, largest = read_some(
        accumulated, total, largest, far_tile, addressed_key, value, mixed, near,
        column, unit_start, near_from, valid, memory, memory_query, addressed_t, value_t, reach, length, factor,
        False, DIM, WIDTH, HAS_VALID, HAS_MEMORY, HAS_FAR, PRECISION, N, BAND,
    )  # fmt: skip
    if HAS_BONUS:
        # What is added to all near scores is taken from what they are compared with, once.
        largest -= near_bonus * factor
    query_tile = rows_of(query + batch * query_b + head * query_h, column, DIM, query_t, length, WIDTH)
    accumulated, total, largest = read_some(
        accumulated, total, largest, query_tile, local_key, value, mixed, near,
        column, unit_start, near_from, valid, memory, memory_query, local_t, value_t, reach, length, factor,
        True, DIM, WIDTH, HAS_VALID, HAS_MEMORY, HAS_FAR, PRECISION, N, BAND,
    )  # fmt: skip
    if not BY_PAIR:
        accumulated, total, largest = read_all(
            accumulated, total, largest, query_tile, local_key, value, near, diagonal,
            column, valid, memory_query, local_t, value_t, reach, length, factor, True,
            DIM, WIDTH, HAS_VALID, HAS_MEMORY, HAS_FAR, PRECISION, N,
        )  # fmt: skip
        accumulated, total, largest = read_some(
            accumulated, total, largest, query_tile, local_key, value, diagonal, end,
            column, unit_start, near_from, valid, memory, memory_query, local_t, value_t, reach, length, factor,
            True, DIM, WIDTH, HAS_VALID, HAS_MEMORY, HAS_FAR, PRECISION, N, BAND,
        )  # fmt: skip
    if HAS_BONUS:
        largest += near_bonus * factor
    store_output(
        out + batch * out_b + head * out_h, lse + by_head, column,
        accumulated, total, largest, out_t, length, DIM, WIDTH,
    )  # fmt: skip


# Backward: two kinds of programs in one launch, as without a window. Here too one version comes after the other, and
# its gradient is stored before the next begins.


@triton.jit
def to_queries(
    query_tile, key, value, grad_tile, lse, offset, first, mixed, near, diagonal, end,
    column, unit_start, near_from, valid, memory, memory_query, key_t, value_t, reach, length, factor,
    NEAR: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    HAS_VALID: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_BONUS: tl.constexpr, HAS_FAR: tl.constexpr,
    PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """The gradient of one version of M queries, before it is scaled; with a bonus, what each near one gives to it."""
    to_query = tl.zeros([M, WIDTH], tl.float32)
    to_bonus = tl.zeros([M], tl.float32)
    all_first = first
    all_beyond = mixed
    some = (near - mixed) // N
    more = 0  # tiles of the diagonal, which are gone through together with the mixed ones
    if NEAR:
        all_first = near
        all_beyond = diagonal
        more = tl.maximum(tl.cdiv(end - diagonal, N), 0)
    for tile in range(all_first, all_beyond, N):
        keys = rows_inside(key, tile, tl.arange(0, N), DIM, key_t, WIDTH)
        values = rows_inside(value, tile, tl.arange(0, N), DIM, value_t, WIDTH)
        scores = tl.dot(query_tile, tl.trans(keys), input_precision=PRECISION)
        if not NEAR:
            key_column = tile + tl.arange(0, N)
            scores = hide_earlier_units(
                scores, column[:, None], key_column[None, :], valid, memory_query[:, None], reach, length,
                HAS_VALID, HAS_MEMORY, HAS_FAR,
            )  # fmt: skip
        to_scores = gradients_of_scores(scores, values, grad_tile, lse, offset, factor, PRECISION)
        if NEAR and HAS_BONUS:
            to_bonus += tl.sum(to_scores, 1)
        to_query = tl.dot(to_scores.to(keys.dtype), keys, to_query, input_precision=PRECISION, out_dtype=tl.float32)
    for step in tl.range(0, some + more, num_stages=BAND):
        tile = tl.where(step < some, mixed + step * N, diagonal + (step - some) * N)
        key_column = tile + tl.arange(0, N)
        keys = rows_of(key, key_column, DIM, key_t, length, WIDTH)
        values = rows_of(value, key_column, DIM, value_t, length, WIDTH)
        scores = hide_other_version(
            tl.dot(query_tile, tl.trans(keys), input_precision=PRECISION),
            column[:, None], key_column[None, :], unit_start[:, None], near_from[:, None],
            valid, memory, memory_query[:, None], reach, length, NEAR, HAS_VALID, HAS_MEMORY, HAS_FAR,
        )  # fmt: skip
        to_scores = gradients_of_scores(scores, values, grad_tile, lse, offset, factor, PRECISION)
        if NEAR and HAS_BONUS:
            to_bonus += tl.sum(to_scores, 1)
        to_query = tl.dot(to_scores.to(keys.dtype), keys, to_query, input_precision=PRECISION, out_dtype=tl.float32)
    return to_query, to_bonus


@triton.jit
def query_gradients(
    batch, head, begin,
    query, local_key, addressed_key, value, far_query, grad,
    start, left, local_start, valid, memory, bonus, row_lse, delta, far_grad,
    query_grad, far_query_grad, bonus_grad,
    query_b, query_h, query_t, local_b, local_h, local_t, addressed_b, addressed_h, addressed_t,
    value_b, value_h, value_t, far_query_b, far_query_h, far_query_t, grad_b, grad_h, grad_t, far_b, far_h, far_t,
    query_grad_b, query_grad_h, query_grad_t,
    length, rows, reach, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    HAS_VALID: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_BONUS: tl.constexpr,
    HAS_FAR: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """The M queries of a head from ``begin`` on, both versions; N keys at a time."""
    column = begin + tl.arange(0, M)
    grad_tile = rows_of(grad + batch * grad_b + head * grad_h, column, DIM, grad_t, length, WIDTH)
    local_key += batch * local_b + head // GROUP * local_h
    addressed_key += batch * addressed_b + head // GROUP * addressed_h
    value += batch * value_b + head // GROUP * value_h
    by_token = batch * length
    valid += by_token
    memory += by_token
    by_head = (batch * HEADS + head) * length
    unit_start, near_from, memory_query, near_bonus = unit_rows(
        start + by_token, local_start + by_token, memory, bonus + by_head, column,
        length, scale, HAS_MEMORY, HAS_BONUS, M,
    )  # fmt: skip
    by_row = (batch * HEADS + head) * rows
    lse = tl.load(row_lse + by_row + column)
    offset = tl.load(delta + by_row + column)
    factor = scale * LOG2_E
    BY_PAIR: tl.constexpr = HAS_VALID or HAS_MEMORY
    end = tl.minimum(begin + M, length)
    first, mixed, near, diagonal = key_stretches(
        begin, end, tl.load(left + by_token + begin), near_from, memory_query, reach, HAS_MEMORY, HAS_FAR, BY_PAIR, N
    )
    of_grad = batch * query_grad_b + head * query_grad_h

    far_tile = rows_of(far_query + batch * far_query_b + head * far_query_h, column, DIM, far_query_t, length, WIDTH)
    to_query, _ = to_queries(
        far_tile, addressed_key, value, grad_tile, lse, offset, first, mixed, near, diagonal, end,
        column, unit_start, near_from, valid, memory, memory_query, addressed_t, value_t, reach, length, factor,
        False, DIM, WIDTH, HAS_VALID, HAS_MEMORY, HAS_BONUS, HAS_FAR, PRECISION, M, N, BAND,
    )  # fmt: skip
    to_query *= scale
    if HAS_FAR:
        to_query += far_rows(far_grad + batch * far_b + head * far_h, column, DIM, far_t, reach, length, WIDTH)
    store_rows(far_query_grad + of_grad, column, to_query, DIM, query_grad_t, length, WIDTH)
    if HAS_BONUS:
        lse -= near_bonus * factor
    query_tile = rows_of(query + batch * query_b + head * query_h, column, DIM, query_t, length, WIDTH)
    to_query, to_bonus = to_queries(
        query_tile, local_key, value, grad_tile, lse, offset, first, mixed, near, diagonal, end,
        column, unit_start, near_from, valid, memory, memory_query, local_t, value_t, reach, length, factor,
        True, DIM, WIDTH, HAS_VALID, HAS_MEMORY, HAS_BONUS, HAS_FAR, PRECISION, M, N, BAND,
    )  # fmt: skip
    store_rows(query_grad + of_grad, column, to_query * scale, DIM, query_grad_t, length, WIDTH)
    if HAS_BONUS:
        tl.store(bonus_grad + by_head + column, to_bonus, mask=column < length)


@triton.jit
def query_stretches(
    begin, until, reach, length, BY_PAIR: tl.constexpr, HAS_FAR: tl.constexpr, M: tl.constexpr, N: tl.constexpr
):  # fmt: skip
    """Who reads the N keys from ``begin`` on, in tiles of M queries: first the ``diagonal``; all of them near from
    ``near`` to ``mixed``, which may be no later; far from ``far`` on, up to ``last``."""
    last = tl.cdiv(length, M)
    if HAS_FAR:
        last = tl.minimum(last, tl.cdiv(begin + N - 1 + reach, M))
    diagonal = begin // M
    far = tl.minimum(tl.cdiv(tl.load(until + tl.minimum(begin + N, length) - 1), M), last)
    near = tl.minimum(tl.cdiv(begin + N, M), far)
    mixed = diagonal
    if not BY_PAIR:
        first_far = tl.load(until + begin)
        # Where nobody reads the keys far, far queries may not even be there.
        mixed = tl.where(first_far < length, tl.minimum(first_far // M, far), far)
    return diagonal, near, mixed, far, last


@triton.jit
def to_keys(
    keys, values, to_key, to_value, queries, grads, query_t, grad_t, row_lse, delta, key_column,
    diagonal, near, mixed, far, last, start, local_start, valid, memory, bonus, length, reach, scale,
    NEAR: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    HAS_VALID: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_BONUS: tl.constexpr, HAS_FAR: tl.constexpr,
    PRECISION: tl.constexpr, M: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """What the queries of one head that read the keys in this version add to their gradients, and the values'."""
    factor = scale * LOG2_E
    some_first = mixed
    more_first = mixed
    some = far - mixed
    more = 0
    all_first = far
    all_beyond = last
    if NEAR:
        all_first = near
        all_beyond = mixed
        some_first = diagonal
        some = near - diagonal
        more_first = tl.maximum(near, mixed)
        more = far - more_first
    for step in tl.range(0, some + more, num_stages=BAND):
        tile = tl.where(step < some, some_first + step, more_first + step - some)
        column = tile * M + tl.arange(0, M)
        query_tile, grad_tile, lse, offset = query_rows(
            queries, grads, row_lse, delta, tile * M, query_t, grad_t, length, DIM, WIDTH, M
        )
        unit_start, near_from, memory_query, near_bonus = unit_rows(
            start, local_start, memory, bonus, column, length, scale, HAS_MEMORY, HAS_BONUS, M
        )
        if NEAR and HAS_BONUS:
            lse -= near_bonus * factor
        scores = hide_other_version(
            tl.dot(keys, tl.trans(query_tile), input_precision=PRECISION),
            column[None, :], key_column[:, None], unit_start[None, :], near_from[None, :],
            valid, memory, memory_query[None, :], reach, length, NEAR, HAS_VALID, HAS_MEMORY, HAS_FAR,
        )  # fmt: skip
        to_key, to_value = to_keys_of(
            scores, query_tile, grad_tile, lse, offset, values, to_key, to_value, factor, PRECISION
        )
    for tile in range(all_first, all_beyond):
        query_tile, grad_tile, lse, offset = query_rows(
            queries, grads, row_lse, delta, tile * M, query_t, grad_t, length, DIM, WIDTH, M
        )
        scores = tl.dot(keys, tl.trans(query_tile), input_precision=PRECISION)
        column = tile * M + tl.arange(0, M)
        if NEAR:
            if HAS_BONUS:
                lse -= tl.load(bonus + tl.minimum(column, length - 1)) * LOG2_E
        else:
            memory_query = tl.zeros([M], tl.int8)
            if HAS_MEMORY:
                memory_query = tl.load(memory + tl.minimum(column, length - 1))
            scores = hide_earlier_units(
                scores, column[None, :], key_column[:, None], valid, memory_query[None, :], reach, length,
                HAS_VALID, HAS_MEMORY, HAS_FAR,
            )  # fmt: skip
        to_key, to_value = to_keys_of(
            scores, query_tile, grad_tile, lse, offset, values, to_key, to_value, factor, PRECISION
        )
    return to_key, to_value


@triton.jit
def key_gradients(
    batch, kv_head, begin,
    query, local_key, addressed_key, value, far_query, grad,
    start, until, local_start, valid, memory, bonus, row_lse, delta, far_key_grad, far_value_grad,
    local_grad, addressed_grad, value_grad,
    query_b, query_h, query_t, local_b, local_h, local_t, addressed_b, addressed_h, addressed_t,
    value_b, value_h, value_t, far_query_b, far_query_h, far_query_t, grad_b, grad_h, grad_t,
    far_key_b, far_key_h, far_key_t, far_value_b, far_value_h, far_value_t,
    key_grad_b, key_grad_h, key_grad_t, value_grad_b, value_grad_h, value_grad_t,
    length, rows, reach, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    HAS_VALID: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_BONUS: tl.constexpr,
    HAS_FAR: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """The N keys, both versions, and values from ``begin`` on; all query heads that share them, one after the other, M
    queries at a time."""
    key_column = begin + tl.arange(0, N)
    values = rows_of(value + batch * value_b + kv_head * value_h, key_column, DIM, value_t, length, WIDTH)
    by_token = batch * length
    BY_PAIR: tl.constexpr = HAS_VALID or HAS_MEMORY
    diagonal, near, mixed, far, last = query_stretches(begin, until + by_token, reach, length, BY_PAIR, HAS_FAR, M, N)
    of_grad = batch * key_grad_b + kv_head * key_grad_h

    keys = rows_of(local_key + batch * local_b + kv_head * local_h, key_column, DIM, local_t, length, WIDTH)
    to_key = tl.zeros([N, WIDTH], tl.float32)
    to_value = tl.zeros([N, WIDTH], tl.float32)
    for member in range(GROUP):
        head = kv_head * GROUP + member
        by_row = (batch * HEADS + head) * rows
        to_key, to_value = to_keys(
            keys, values, to_key, to_value,
            query + batch * query_b + head * query_h, grad + batch * grad_b + head * grad_h, query_t, grad_t,
            row_lse + by_row, delta + by_row, key_column, diagonal, near, mixed, far, last,
            start + by_token, local_start + by_token, valid + by_token, memory + by_token,
            bonus + (batch * HEADS + head) * length, length, reach, scale,
            True, DIM, WIDTH, HAS_VALID, HAS_MEMORY, HAS_BONUS, HAS_FAR, PRECISION, M, BAND,
        )  # fmt: skip
    store_rows(local_grad + of_grad, key_column, to_key * scale, DIM, key_grad_t, length, WIDTH)

    keys = rows_of(
        addressed_key + batch * addressed_b + kv_head * addressed_h, key_column, DIM, addressed_t, length, WIDTH
    )
    to_key = tl.zeros([N, WIDTH], tl.float32)
    for member in range(GROUP):
        head = kv_head * GROUP + member
        by_row = (batch * HEADS + head) * rows
        to_key, to_value = to_keys(
            keys, values, to_key, to_value,
            far_query + batch * far_query_b + head * far_query_h, grad + batch * grad_b + head * grad_h,
            far_query_t, grad_t,
            row_lse + by_row, delta + by_row, key_column, diagonal, near, mixed, far, last,
            start + by_token, local_start + by_token, valid + by_token, memory + by_token,
            bonus + (batch * HEADS + head) * length, length, reach, scale,
            False, DIM, WIDTH, HAS_VALID, HAS_MEMORY, HAS_BONUS, HAS_FAR, PRECISION, M, BAND,
        )  # fmt: skip
    to_key *= scale
    if HAS_FAR:
        far_key_grad += batch * far_key_b + kv_head * far_key_h
        far_value_grad += batch * far_value_b + kv_head * far_value_h
        to_key += rows_of(far_key_grad, key_column, DIM, far_key_t, length - reach, WIDTH).to(tl.float32)
        to_value += rows_of(far_value_grad, key_column, DIM, far_value_t, length - reach, WIDTH).to(tl.float32)
    store_rows(addressed_grad + of_grad, key_column, to_key, DIM, key_grad_t, length, WIDTH)
    value_grad += batch * value_grad_b + kv_head * value_grad_h
    store_rows(value_grad, key_column, to_value, DIM, value_grad_t, length, WIDTH)


@triton.jit(do_not_specialize=["concurrent"])
def window_backward_kernel(
    query, local_key, addressed_key, value, far_query, grad,
    start, left, until, local_start, valid, memory, bonus, row_lse, delta,
    far_grad, far_key_grad, far_value_grad,
    query_grad, far_query_grad, bonus_grad, local_grad, addressed_grad, value_grad,
    query_b, query_h, query_t, local_b, local_h, local_t, addressed_b, addressed_h, addressed_t,
    value_b, value_h, value_t, far_query_b, far_query_h, far_query_t, grad_b, grad_h, grad_t,
    far_b, far_h, far_t, far_key_b, far_key_h, far_key_t, far_value_b, far_value_h, far_value_t,
    query_grad_b, query_grad_h, query_grad_t, key_grad_b, key_grad_h, key_grad_t,
    value_grad_b, value_grad_h, value_grad_t,
    length, rows, reach, concurrent, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    HAS_VALID: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_BONUS: tl.constexpr,
    HAS_FAR: tl.constexpr, PRECISION: tl.constexpr, LENGTH_CLASS,
    ROWS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """The gradients of both versions of the queries lie alike, and those of the keys."""
    tiles = tl.cdiv(length, ROWS)
    batch, kv_head, member, order = scheduled_lane(concurrent, tiles, HEADS, GROUP)
    if member == 0:
        key_gradients(
            batch, kv_head, order * ROWS,
            query, local_key, addressed_key, value, far_query, grad,
            start, until, local_start, valid, memory, bonus, row_lse, delta, far_key_grad, far_value_grad,
            local_grad, addressed_grad, value_grad,
            query_b, query_h, query_t, local_b, local_h, local_t, addressed_b, addressed_h, addressed_t,
            value_b, value_h, value_t, far_query_b, far_query_h, far_query_t, grad_b, grad_h, grad_t,
            far_key_b, far_key_h, far_key_t, far_value_b, far_value_h, far_value_t,
            key_grad_b, key_grad_h, key_grad_t, value_grad_b, value_grad_h, value_grad_t,
            length, rows, reach, scale, HEADS, GROUP, DIM, WIDTH,
            HAS_VALID, HAS_MEMORY, HAS_BONUS, HAS_FAR, PRECISION, M, ROWS, BAND,
        )  # fmt: skip
    else:
        query_gradients(
            batch, kv_head * GROUP + member - 1, (tiles - 1 - order) * ROWS,
            query, local_key, addressed_key, value, far_query, grad,
            start, left, local_start, valid, memory, bonus, row_lse, delta, far_grad,
            query_grad, far_query_grad, bonus_grad,
            query_b, query_h, query_t, local_b, local_h, local_t, addressed_b, addressed_h, addressed_t,
            value_b, value_h, value_t, far_query_b, far_query_h, far_query_t, grad_b, grad_h, grad_t,
            far_b, far_h, far_t, query_grad_b, query_grad_h, query_grad_t,
            length, rows, reach, scale, HEADS, GROUP, DIM, WIDTH,
            HAS_VALID, HAS_MEMORY, HAS_BONUS, HAS_FAR, PRECISION, ROWS, N, BAND,
        )  # fmt: skip
