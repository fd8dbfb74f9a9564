"""The forward kernel: one program reads all keys of one tile of queries."""

from __future__ import annotations

import triton
import triton.language as tl

from contentrope.attention.fused.tiles import LOG2_E, band_scores, hidden_pairs, rows_inside, rows_of, store_rows


@triton.jit
def absorb(scores, value, accumulated, total, largest, PRECISION: tl.constexpr):
    """One more tile of keys: the running softmax, kept relative to the largest score so far."""
    new_largest = tl.maximum(largest, tl.max(scores, 1))
    # A query that has seen nothing yet has no largest score; zero keeps the differences finite or -inf.
    reference = tl.where(new_largest == float("-inf"), 0.0, new_largest)
    weights = tl.exp2(scores - reference[:, None])
    fade = tl.exp2(largest - reference)
    accumulated = tl.dot(
        weights.to(value.dtype), value, accumulated * fade[:, None], input_precision=PRECISION, out_dtype=tl.float32
    )
    return accumulated, total * fade + tl.sum(weights, 1), new_largest


@triton.jit
def forward_kernel(
    query, local_key, addressed_key, value,
    start, left, closes, valid, memory, bonus,
    out, log_sum,
    query_b, query_h, query_t, local_b, local_h, local_t, addressed_b, addressed_h, addressed_t,
    value_b, value_h, value_t, out_b, out_h, out_t,
    length, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    HAS_VALID: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_BONUS: tl.constexpr, PRECISION: tl.constexpr,
    LENGTH_CLASS, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # the longest first, so that the last to run are short
    batch = (tl.program_id(1) // HEADS).to(tl.int64)
    head = (tl.program_id(1) % HEADS).to(tl.int64)
    begin = tile * M
    column = begin + tl.arange(0, M)
    inside = column < length
    query_tile = rows_of(query + batch * query_b + head * query_h, column, DIM, query_t, length, WIDTH)
    local_key += batch * local_b + head // GROUP * local_h
    addressed_key += batch * addressed_b + head // GROUP * addressed_h
    value += batch * value_b + head // GROUP * value_h
    by_token = batch * length
    unit_start = tl.load(start + by_token + column, mask=inside, other=length)
    closing = tl.load(closes + by_token + column, mask=inside, other=0) != 0
    memory_query = tl.zeros([M], tl.int8)
    if HAS_MEMORY:
        memory_query = tl.load(memory + by_token + column, mask=inside, other=1)
    own_bonus = tl.zeros([M], tl.float32)
    if HAS_BONUS:
        own_bonus = tl.load(bonus + (batch * HEADS + head) * length + column, mask=inside, other=0.0) * LOG2_E
    in_powers_of_two = scale * LOG2_E

    accumulated = tl.zeros([M, WIDTH], tl.float32)
    total = tl.zeros([M], tl.float32)
    largest = tl.full([M], float("-inf"), tl.float32)
    nothing_own = tl.zeros([M, N], tl.int1)
    band = tl.load(left + by_token + begin) // N * N
    far = 0
    if HAS_MEMORY:
        if tl.min(memory_query.to(tl.int32)) == 1:
            far = band  # nobody here looks beyond its own unit
    for first in range(far, band, N):
        key_column = first + tl.arange(0, N)
        keys = rows_inside(addressed_key, key_column, DIM, addressed_t, WIDTH)
        scores = tl.dot(query_tile, tl.trans(keys), input_precision=PRECISION) * in_powers_of_two
        scores = hidden_pairs(
            scores, nothing_own, key_column, valid + by_token, memory_query, length, HAS_VALID, HAS_MEMORY
        )
        values = rows_inside(value, key_column, DIM, value_t, WIDTH)
        accumulated, total, largest = absorb(scores, values, accumulated, total, largest, PRECISION)
    for first in tl.range(band, tl.minimum(begin + M, length), N, num_stages=1):
        key_column = first + tl.arange(0, N)
        addressed = rows_of(addressed_key, key_column, DIM, addressed_t, length, WIDTH)
        local = rows_of(local_key, key_column, DIM, local_t, length, WIDTH)
        scores, _, _ = band_scores(
            query_tile, local, addressed, column, key_column, unit_start, closing, own_bonus, valid + by_token,
            memory_query, in_powers_of_two, length, HAS_VALID, HAS_MEMORY, HAS_BONUS, PRECISION,
        )  # fmt: skip
        values = rows_of(value, key_column, DIM, value_t, length, WIDTH)
        accumulated, total, largest = absorb(scores, values, accumulated, total, largest, PRECISION)

    sees_any = total > 0
    accumulated = accumulated / tl.where(sees_any, total, 1.0)[:, None]
    store_rows(out + batch * out_b + head * out_h, column, accumulated, DIM, out_t, length, WIDTH)
    # Infinite where nothing was seen: every weight is zero then in the backward pass too.
    sums = tl.where(sees_any, largest + tl.log2(tl.where(sees_any, total, 1.0)), float("inf"))
    tl.store(log_sum + (batch * HEADS + head) * length + column, sums, mask=inside)
