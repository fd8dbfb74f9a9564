"""The backward kernels. One launch has two kinds of programs, for tiles of queries and for tiles of keys; no two write
to the same place.

With P the weights, dP = dO V' and D = sum(dO O): the gradient of the scores is dS = P (dP - D). It goes to the local or
to the addressed keys, whichever a pair was read with; to the own unit's bonus goes its sum over that unit.

Tiles differ in how much they read, and a GPU waits for the longest: started together, programs of one kind fill the
time in which the other's last ones run.
"""

from __future__ import annotations

import triton
import triton.language as tl

from contentrope.kernels.attention.tiles import place_of, rows_of
from contentrope.kernels.attention.to_keys import key_gradients
from contentrope.kernels.attention.to_queries import query_gradients


@triton.jit
def prepare_kernel(
    grad, out, log_sum, sums, delta, grad_b, grad_h, grad_t, out_b, out_h, out_t, length, rows,
    HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """D of some queries of one head, and their sums of weights. There are more ``rows`` than queries, as tiles are read
    whole: infinite sums let them weigh nothing, so that nobody needs to check in an inner loop."""
    tiles = rows // ROWS
    batch = (tl.program_id(0) // tiles // HEADS).to(tl.int64)
    head = (tl.program_id(0) // tiles % HEADS).to(tl.int64)
    column = tl.program_id(0) % tiles * ROWS + tl.arange(0, ROWS)
    inside = column < length
    grads = rows_of(grad + batch * grad_b + head * grad_h, column, DIM, grad_t, length, WIDTH)
    outs = rows_of(out + batch * out_b + head * out_h, column, DIM, out_t, length, WIDTH)
    of_head = batch * HEADS + head
    known = tl.load(log_sum + of_head * length + column, mask=inside, other=float("inf"))
    tl.store(sums + of_head * rows + column, known)
    tl.store(delta + of_head * rows + column, tl.sum(grads.to(tl.float32) * outs.to(tl.float32), 1))


@triton.jit(do_not_specialize=["abreast"])
def backward_kernel(
    query, local_key, addressed_key, value, grad,
    start, left, until, spared, local_start, valid, memory, bonus, sums, delta,
    far_query_grad, far_key_grad, far_value_grad, query_grad, bonus_grad, local_grad, addressed_grad, value_grad,
    query_b, query_h, query_t, local_b, local_h, local_t, addressed_b, addressed_h, addressed_t,
    value_b, value_h, value_t, grad_b, grad_h, grad_t, far_query_b, far_query_h, far_query_t,
    far_key_b, far_key_h, far_key_t, far_value_b, far_value_h, far_value_t,
    query_grad_b, query_grad_h, query_grad_t, key_grad_b, key_grad_h, key_grad_t,
    value_grad_b, value_grad_h, value_grad_t,
    length, rows, reach, abreast, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    HAS_SPARED: tl.constexpr, HAS_VALID: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_BONUS: tl.constexpr,
    HAS_FAR: tl.constexpr, PRECISION: tl.constexpr, LENGTH_CLASS,
    ROWS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """Each head of keys has a lane of programs for itself and one for every head of queries that shares it; the first
    tile of keys is as long as the last of queries. ``abreast`` counts heads of keys."""
    lanes: tl.constexpr = 1 + GROUP
    kv_heads: tl.constexpr = HEADS // GROUP
    tiles = tl.cdiv(length, ROWS)
    lane, turn = place_of(abreast * lanes, tiles)
    place = lane // lanes
    member = lane % lanes
    batch = (place // kv_heads).to(tl.int64)
    kv_head = (place % kv_heads).to(tl.int64)
    if member == 0:
        key_gradients(
            batch, kv_head, turn * ROWS,
            query, local_key, addressed_key, value, grad,
            start, until, spared, local_start, valid, memory, bonus, sums, delta, far_key_grad, far_value_grad,
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
            batch, kv_head * GROUP + member - 1, (tiles - 1 - turn) * ROWS,
            query, local_key, addressed_key, value, grad,
            start, left, spared, local_start, valid, memory, bonus, sums, delta, far_query_grad,
            query_grad, bonus_grad,
            query_b, query_h, query_t, local_b, local_h, local_t, addressed_b, addressed_h, addressed_t,
            value_b, value_h, value_t, grad_b, grad_h, grad_t, far_query_b, far_query_h, far_query_t,
            query_grad_b, query_grad_h, query_grad_t,
            length, rows, reach, scale, HEADS, GROUP, DIM, WIDTH,
            HAS_SPARED, HAS_VALID, HAS_MEMORY, HAS_BONUS, HAS_FAR, PRECISION, ROWS, N, BAND,
        )  # fmt: skip
