"""The backward kernels: one by tiles of queries, then one by tiles of keys. No two programs write to the same place.

With P the weights, dP = dO V' and D = sum(dO O): the gradient of the scores is dS = P (dP - D). It goes to the local or
to the addressed keys, whichever a pair was read with; to the own unit's bonus goes its sum over that unit.
"""

from __future__ import annotations

import triton
import triton.language as tl

from contentrope.attention.fused.tiles import (
    LOG2_E,
    band_scores,
    first_beyond,
    first_tiles,
    hide_beyond_reach,
    hide_earlier_units,
    place_of,
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


@triton.jit(do_not_specialize=["abreast"])
def query_kernel(
    query, local_key, addressed_key, value, grad,
    start, left, spared, closes, valid, memory, bonus, log_sum, delta, out, far_grad,
    query_grad, bonus_grad,
    query_b, query_h, query_t, local_b, local_h, local_t, addressed_b, addressed_h, addressed_t,
    value_b, value_h, value_t, grad_b, grad_h, grad_t, out_b, out_h, out_t, far_b, far_h, far_t,
    query_grad_b, query_grad_h, query_grad_t,
    length, reach, abreast, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    HAS_SPARED: tl.constexpr, HAS_VALID: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_BONUS: tl.constexpr,
    HAS_FAR: tl.constexpr, PRECISION: tl.constexpr, LENGTH_CLASS, M: tl.constexpr, N: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """Queries of one tile; their D is left in ``delta`` for the kernel of the keys."""
    tiles = tl.cdiv(length, M)
    place, turn = place_of(abreast, tiles)
    batch = (place // HEADS).to(tl.int64)
    head = (place % HEADS).to(tl.int64)
    begin = (tiles - 1 - turn) * M
    column = begin + tl.arange(0, M)
    inside = column < length
    query_tile = rows_of(query + batch * query_b + head * query_h, column, DIM, query_t, length, WIDTH)
    grad_tile = rows_of(grad + batch * grad_b + head * grad_h, column, DIM, grad_t, length, WIDTH)
    local_key += batch * local_b + head // GROUP * local_h
    addressed_key += batch * addressed_b + head // GROUP * addressed_h
    value += batch * value_b + head // GROUP * value_h
    by_token = batch * length
    by_head = (batch * HEADS + head) * length
    by_spared = (batch * (HEADS // GROUP) + head // GROUP) * length
    unit_start, local_from, memory_query, own_bonus = unit_rows(
        start + by_token, spared + by_spared, closes + by_token, memory + by_token, bonus + by_head, column,
        length, scale, HAS_SPARED, HAS_MEMORY, HAS_BONUS, M,
    )  # fmt: skip
    sums = tl.load(log_sum + by_head + column, mask=inside, other=float("inf"))
    out_tile = rows_of(out + batch * out_b + head * out_h, column, DIM, out_t, length, WIDTH)
    offset = tl.sum(out_tile.to(tl.float32) * grad_tile.to(tl.float32), 1)
    tl.store(delta + by_head + column, offset, mask=inside)
    factor = scale * LOG2_E

    to_query = tl.zeros([M, WIDTH], tl.float32)
    to_bonus = tl.zeros([M], tl.float32)
    first, unmasked, band = first_tiles(begin, tl.load(left + by_token + begin), reach, M, N, HAS_FAR)
    if HAS_FAR:
        for edge in range(first, unmasked, N):
            key_column = edge + tl.arange(0, N)
            keys = rows_inside(addressed_key, key_column, DIM, addressed_t, WIDTH)
            values = rows_inside(value, key_column, DIM, value_t, WIDTH)
            scores = tl.dot(query_tile, tl.trans(keys), input_precision=PRECISION)
            scores = hide_beyond_reach(scores, column[:, None], key_column[None, :], reach)
            to_query = to_query_of(scores, keys, values, grad_tile, sums, offset, to_query, factor, PRECISION)
    if HAS_MEMORY:
        if tl.min(memory_query.to(tl.int32)) == 1:
            unmasked = band
    for earlier in range(unmasked, band, N):
        key_column = earlier + tl.arange(0, N)
        keys = rows_inside(addressed_key, key_column, DIM, addressed_t, WIDTH)
        values = rows_inside(value, key_column, DIM, value_t, WIDTH)
        scores = tl.dot(query_tile, tl.trans(keys), input_precision=PRECISION)
        scores = hide_earlier_units(
            scores, key_column[None, :], valid + by_token, memory_query[:, None], length, HAS_VALID, HAS_MEMORY
        )
        to_query = to_query_of(scores, keys, values, grad_tile, sums, offset, to_query, factor, PRECISION)
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
        to_scores = tl.exp2(scores * factor - sums[:, None]) * (to_weights - offset[:, None])
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
        tl.store(bonus_grad + by_head + column, to_bonus, mask=inside)


@triton.jit
def query_rows(
    queries, grads, log_sum, delta, column, query_t, grad_t, length, DIM: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Of a tile of queries: themselves, the gradient of their output, their sums of weights, their D.

    Beyond the end the last is read again, which is less to check in the inner loop; infinite sums let it weigh nothing.
    """
    inside = column < length
    row = tl.minimum(column, length - 1)
    return (
        rows_inside(queries, row, DIM, query_t, WIDTH),
        rows_inside(grads, row, DIM, grad_t, WIDTH),
        tl.load(log_sum + column, mask=inside, other=float("inf")),
        tl.load(delta + column, mask=inside, other=0.0),
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


@triton.jit(do_not_specialize=["abreast"])
def key_kernel(
    query, local_key, addressed_key, value, grad,
    start, left, spared, closes, valid, memory, bonus, log_sum, delta, far_key_grad, far_value_grad,
    local_grad, addressed_grad, value_grad,
    query_b, query_h, query_t, local_b, local_h, local_t, addressed_b, addressed_h, addressed_t,
    value_b, value_h, value_t, grad_b, grad_h, grad_t, far_key_b, far_key_h, far_key_t,
    far_value_b, far_value_h, far_value_t, key_grad_b, key_grad_h, key_grad_t, value_grad_b, value_grad_h, value_grad_t,
    length, reach, abreast, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    HAS_SPARED: tl.constexpr, HAS_VALID: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_BONUS: tl.constexpr,
    HAS_FAR: tl.constexpr, PRECISION: tl.constexpr, LENGTH_CLASS, M: tl.constexpr, N: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """Keys and values of one tile; all query heads that share them, one after the other. Scores have keys as rows."""
    kv_heads: tl.constexpr = HEADS // GROUP
    place, turn = place_of(abreast, tl.cdiv(length, N))
    batch = (place // kv_heads).to(tl.int64)
    kv_head = (place % kv_heads).to(tl.int64)
    begin = turn * N
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
    later = first_beyond(left + by_token, diagonal, last, begin + N, M)
    masked = last
    if HAS_FAR:
        masked = tl.minimum(tl.maximum((begin + reach) // M, later), last)
    no_memory = tl.zeros([M], tl.int8)

    to_local = tl.zeros([N, WIDTH], tl.float32)
    to_addressed = tl.zeros([N, WIDTH], tl.float32)
    to_value = tl.zeros([N, WIDTH], tl.float32)
    for member in range(GROUP):
        head = kv_head * GROUP + member
        queries = query + batch * query_b + head * query_h
        grads = grad + batch * grad_b + head * grad_h
        by_head = (batch * HEADS + head) * length
        for tile in tl.range(diagonal, later, num_stages=BAND):
            column = tile * M + tl.arange(0, M)
            query_tile, grad_tile, sums, offset = query_rows(
                queries, grads, log_sum + by_head, delta + by_head, column, query_t, grad_t, length, DIM, WIDTH
            )
            unit_start, local_from, memory_query, own_bonus = unit_rows(
                start + by_token, spared + by_spared, closes + by_token, memory + by_token, bonus + by_head, column,
                length, scale, HAS_SPARED, HAS_MEMORY, HAS_BONUS, M,
            )  # fmt: skip
            scores, _, reads_local = band_scores(
                tl.dot(local, tl.trans(query_tile), input_precision=PRECISION),
                tl.dot(addressed, tl.trans(query_tile), input_precision=PRECISION),
                column[None, :], key_column[:, None], unit_start[None, :], local_from[None, :], own_bonus[None, :],
                valid + by_token, memory_query[None, :], reach, length, HAS_VALID, HAS_MEMORY, HAS_BONUS, HAS_FAR,
            )  # fmt: skip
            weights = tl.exp2(scores * factor - sums[None, :])
            to_value = tl.dot(
                weights.to(grad_tile.dtype), grad_tile, to_value, input_precision=PRECISION, out_dtype=tl.float32
            )
            to_weights = tl.dot(values, tl.trans(grad_tile), input_precision=PRECISION)
            to_scores = weights * (to_weights - offset[None, :])
            by_local = tl.where(reads_local, to_scores, 0.0).to(query_tile.dtype)
            by_address = tl.where(reads_local, 0.0, to_scores).to(query_tile.dtype)
            to_local = tl.dot(by_local, query_tile, to_local, input_precision=PRECISION, out_dtype=tl.float32)
            to_addressed = tl.dot(by_address, query_tile, to_addressed, input_precision=PRECISION, out_dtype=tl.float32)
    to_here = batch * key_grad_b + kv_head * key_grad_h
    # Beyond the band nothing is read locally: stored now, this leaves its registers to what follows.
    store_rows(local_grad + to_here, key_column, to_local * scale, DIM, key_grad_t, length, WIDTH)
    for member in range(GROUP):
        head = kv_head * GROUP + member
        queries = query + batch * query_b + head * query_h
        grads = grad + batch * grad_b + head * grad_h
        by_head = (batch * HEADS + head) * length
        for tile in range(later, masked):
            column = tile * M + tl.arange(0, M)
            query_tile, grad_tile, sums, offset = query_rows(
                queries, grads, log_sum + by_head, delta + by_head, column, query_t, grad_t, length, DIM, WIDTH
            )
            memory_query = no_memory
            if HAS_MEMORY:
                memory_query = tl.load(memory + by_token + column, mask=column < length, other=1)
            scores = tl.dot(addressed, tl.trans(query_tile), input_precision=PRECISION)
            scores = hide_earlier_units(
                scores, key_column[:, None], valid + by_token, memory_query[None, :], length, HAS_VALID, HAS_MEMORY
            )
            to_addressed, to_value = to_keys_of(
                scores, query_tile, grad_tile, sums, offset, values, to_addressed, to_value, factor, PRECISION
            )
        if HAS_FAR:
            for tile in range(masked, last):
                column = tile * M + tl.arange(0, M)
                query_tile, grad_tile, sums, offset = query_rows(
                    queries, grads, log_sum + by_head, delta + by_head, column, query_t, grad_t, length, DIM, WIDTH
                )
                scores = tl.dot(addressed, tl.trans(query_tile), input_precision=PRECISION)
                scores = hide_beyond_reach(scores, column[None, :], key_column[:, None], reach)
                to_addressed, to_value = to_keys_of(
                    scores, query_tile, grad_tile, sums, offset, values, to_addressed, to_value, factor, PRECISION
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
