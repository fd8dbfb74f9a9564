"""The forward kernel: one program reads all keys of one tile of queries."""

from __future__ import annotations

import triton
import triton.language as tl

from contentrope.kernels.attention.tiles import (
    LOG2_E,
    band_scores,
    first_tiles,
    hide_earlier_units,
    place_of,
    rows_inside,
    rows_of,
    store_rows,
    unit_rows,
)


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


@triton.jit(do_not_specialize=["abreast"])
def forward_kernel(
    query, local_key, addressed_key, value,
    start, left, until, spared, local_start, valid, memory, bonus, far_out, far_log_sum,
    out, log_sum,
    query_b, query_h, query_t, local_b, local_h, local_t, addressed_b, addressed_h, addressed_t,
    value_b, value_h, value_t, far_b, far_h, far_t, out_b, out_h, out_t,
    length, reach, abreast, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    HAS_SPARED: tl.constexpr, HAS_VALID: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_BONUS: tl.constexpr,
    HAS_FAR: tl.constexpr, PRECISION: tl.constexpr, LENGTH_CLASS, M: tl.constexpr, N: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(length, M)
    place, turn = place_of(abreast, tiles)
    batch = (place // HEADS).to(tl.int64)
    head = (place % HEADS).to(tl.int64)
    begin = (tiles - 1 - turn) * M
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
        largest = tl.load(far_log_sum + by_far + far_row, mask=has_far, other=float("-inf")) * LOG2_E
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
    sums = tl.where(sees_any, largest + tl.log2(tl.where(sees_any, total, 1.0)), float("inf"))
    tl.store(log_sum + by_head + column, sums, mask=inside)
