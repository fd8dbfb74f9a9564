"""Of the backward kernel, the programs that go through queries: gradients of one tile of keys and values.

Scores have keys as rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from contentrope.kernels.attention.tiles import (
    LOG2_E,
    band_scores,
    hide_earlier_units,
    rows_inside,
    rows_of,
    store_rows,
    unit_rows,
)


@triton.jit
def query_rows(
    queries, grads, sums, delta, first, query_t, grad_t, length,
    DIM: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Of M queries from ``first`` on: themselves, the gradient of their output, their sums of weights, their D.

    Beyond the end the last is read again, which is less to check in the inner loop; its sums are infinite there.
    """
    row = tl.arange(0, M)
    there = tl.minimum(row, length - 1 - first)
    return (
        rows_inside(queries, first, there, DIM, query_t, WIDTH),
        rows_inside(grads, first, there, DIM, grad_t, WIDTH),
        tl.load(sums + first + row),
        tl.load(delta + first + row),
    )


@triton.jit
def to_keys_of(
    scores, query_tile, grad_tile, sums, offset, values, to_addressed, to_value, factor, PRECISION: tl.constexpr
):  # fmt: skip
    """One more tile of queries of later units: what it adds to the gradients of addressed keys and values."""
    to_weights = tl.dot(values, tl.trans(grad_tile), input_precision=PRECISION)
    weights = tl.exp2(scores * factor - sums[None, :])
    to_value = tl.dot(weights.to(grad_tile.dtype), grad_tile, to_value, input_precision=PRECISION, out_dtype=tl.float32)
    to_scores = (weights * (to_weights - offset[None, :])).to(query_tile.dtype)
    to_addressed = tl.dot(to_scores, query_tile, to_addressed, input_precision=PRECISION, out_dtype=tl.float32)
    return to_addressed, to_value


@triton.jit
def to_keys_of_band(
    first, beyond, key_column, local, addressed, values, to_local, to_addressed, to_value,
    queries, grads, query_t, grad_t, sums, delta, start, spared, local_start, valid, memory, bonus,
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
        query_tile, grad_tile, own_sums, offset = query_rows(
            queries, grads, sums, delta, tile * M, query_t, grad_t, length, DIM, WIDTH, M
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
        weights = tl.exp2(scores * factor - own_sums[None, :])
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
    start, until, spared, local_start, valid, memory, bonus, sums, delta, far_key_grad, far_value_grad,
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
                sums + by_row, delta + by_row, start + by_token, spared + by_spared, local_start + by_token,
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
            query_tile, grad_tile, own_sums, offset = query_rows(
                queries, grads, sums + by_row, delta + by_row, tile * M, query_t, grad_t, length, DIM, WIDTH, M
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
                scores, query_tile, grad_tile, own_sums, offset, values, to_addressed, to_value, factor, PRECISION
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
