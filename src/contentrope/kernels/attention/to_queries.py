"""Of the backward kernel, the programs that go through keys: gradients of one tile of queries."""

from __future__ import annotations

import triton
import triton.language as tl

from contentrope.kernels.attention.tiles import (
    LOG2_E,
    band_scores,
    first_tiles,
    hide_earlier_units,
    rows_inside,
    rows_of,
    store_rows,
    unit_rows,
)


@triton.jit
def to_query_of(scores, keys, values, grad_tile, sums, offset, to_query, factor, PRECISION: tl.constexpr):
    """One more tile of earlier units: what it adds to the gradient of the queries."""
    to_weights = tl.dot(grad_tile, tl.trans(values), input_precision=PRECISION)
    to_scores = tl.exp2(scores * factor - sums[:, None]) * (to_weights - offset[:, None])
    return tl.dot(to_scores.to(keys.dtype), keys, to_query, input_precision=PRECISION, out_dtype=tl.float32)


@triton.jit
def query_gradients(
    batch, head, begin,
    query, local_key, addressed_key, value, grad,
    start, left, spared, local_start, valid, memory, bonus, sums, delta, far_grad,
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
    own_sums = tl.load(sums + by_row + column)
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
        to_query = to_query_of(scores, keys, values, grad_tile, own_sums, offset, to_query, factor, PRECISION)
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
        to_scores = tl.exp2(scores * factor - own_sums[:, None]) * (to_weights - offset[:, None])
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
