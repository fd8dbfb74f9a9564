"""Turning queries and keys forward, and their gradients back; the sum of what tokens give their unit's address.

A program takes some rows: a row is one head of one token. The third axis of the grid says whether of queries (0) or of
keys (1). Lanes are the pairs of a head, whose two dimensions are loaded as two tiles; dimensions that do not turn are
copied. Everything is computed in float32, and in the same order every time.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_pairs(at, rows, is_there, lane, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Both dimensions of every pair; ``rows`` are the offsets of the rows, of which some are there."""
    if INTERLEAVED:
        column = tl.arange(0, 2 * lane.shape[0])
        inside = is_there[:, None] & (column < 2 * PAIRS)[None, :]
        both = tl.load(at + rows[:, None] + column[None, :], mask=inside, other=0.0)
        a, b = tl.split(both.to(tl.float32).reshape(rows.shape[0], lane.shape[0], 2))
    else:
        inside = is_there[:, None] & (lane < PAIRS)[None, :]
        a = tl.load(at + rows[:, None] + lane[None, :], mask=inside, other=0.0).to(tl.float32)
        b = tl.load(at + rows[:, None] + (lane + PAIRS)[None, :], mask=inside, other=0.0).to(tl.float32)
    return a, b


@triton.jit
def store_pairs(at, rows, is_there, lane, a, b, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr):
    dtype = at.dtype.element_ty
    if INTERLEAVED:
        column = tl.arange(0, 2 * lane.shape[0])
        inside = is_there[:, None] & (column < 2 * PAIRS)[None, :]
        tl.store(at + rows[:, None] + column[None, :], tl.interleave(a, b).to(dtype), mask=inside)
    else:
        inside = is_there[:, None] & (lane < PAIRS)[None, :]
        tl.store(at + rows[:, None] + lane[None, :], a.to(dtype), mask=inside)
        tl.store(at + rows[:, None] + (lane + PAIRS)[None, :], b.to(dtype), mask=inside)


@triton.jit
def turn(a, b, cosine, sine):
    """A pair, or another rotation: both are complex products."""
    return a * cosine - b * sine, b * cosine + a * sine


@triton.jit
def places(pid, length, HEADS: tl.constexpr, ROWS: tl.constexpr):
    """Token and head of every row, and which rows there are."""
    row = pid * ROWS + tl.arange(0, ROWS)
    is_there = row < length * HEADS
    row = tl.where(is_there, row, 0)
    return (row // HEADS).to(tl.int64), row % HEADS, is_there


@triton.jit
def offsets(batch, token, head, stride_b, stride_t, stride_h):
    return batch * stride_b + token * stride_t + head * stride_h


@triton.jit
def packed_offsets(batch, token, head, length, HEADS: tl.constexpr, WIDTH: tl.constexpr):
    """Of rows that lie without gaps; in 64 bits, as the batch is."""
    return ((batch * length + token) * HEADS + head) * WIDTH


@triton.jit
def local_turn(cos, sin, batch, token, head, lane, is_there, PAIRS: tl.constexpr, stride_b, stride_t, stride_h):
    inside = is_there[:, None] & (lane < PAIRS)[None, :]
    place = offsets(batch, token, head, stride_b, stride_t, stride_h)[:, None] + lane[None, :]
    return tl.load(cos + place, mask=inside, other=1.0), tl.load(sin + place, mask=inside, other=0.0)


@triton.jit
def address_turn(
    cos, sin, slot, batch, token, head, lane, is_there, length, slots, KV_HEADS: tl.constexpr, PAIRS: tl.constexpr
):
    inside = is_there[:, None] & (lane < PAIRS)[None, :]
    unit = tl.load(slot + batch * length + token).to(tl.int64)
    place = ((batch * slots + unit) * KV_HEADS + head)[:, None] * PAIRS + lane[None, :]
    return tl.load(cos + place, mask=inside, other=1.0), tl.load(sin + place, mask=inside, other=0.0)


@triton.jit
def copy_rest(
    source, rows, target, target_rows, is_there, PAIRS: tl.constexpr, REST: tl.constexpr, REST_WIDTH: tl.constexpr
):
    """What does not turn."""
    lane = tl.arange(0, REST_WIDTH)
    inside = is_there[:, None] & (lane < REST)[None, :]
    column = 2 * PAIRS + lane
    value = tl.load(source + rows[:, None] + column[None, :], mask=inside, other=0.0)
    tl.store(target + target_rows[:, None] + column[None, :], value, mask=inside)


@triton.jit
def turn_queries(
    source, source_b, source_t, source_h, target, target_b, target_t, target_h, direction,
    cos, sin, address_cos, address_sin, slot, closes, lane, cos_b, cos_t, cos_h, length, slots,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
    PAIRS: tl.constexpr, REST: tl.constexpr, REST_WIDTH: tl.constexpr, INTERLEAVED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Forwards (1) queries, backwards (-1) their gradients; by their unit's address too where they close it."""
    batch = tl.program_id(1).to(tl.int64)
    token, head, is_there = places(tl.program_id(0), length, HEADS, ROWS)
    of_keys = head // (HEADS // KV_HEADS)
    cosine, sine = local_turn(cos, sin, batch, token, of_keys, lane, is_there, PAIRS, cos_b, cos_t, cos_h)
    closing = is_there & (tl.load(closes + batch * length + token) != 0)
    to_cos, to_sin = address_turn(
        address_cos, address_sin, slot, batch, token, of_keys, lane, closing, length, slots, KV_HEADS, PAIRS
    )
    cosine, sine = turn(cosine, sine, to_cos, to_sin)
    rows = offsets(batch, token, head, source_b, source_t, source_h)
    out = offsets(batch, token, head, target_b, target_t, target_h)
    a, b = load_pairs(source, rows, is_there, lane, PAIRS, INTERLEAVED)
    a, b = turn(a, b, cosine, direction * sine)
    store_pairs(target, out, is_there, lane, a, b, PAIRS, INTERLEAVED)
    if REST:
        copy_rest(source, rows, target, out, is_there, PAIRS, REST, REST_WIDTH)


@triton.jit
def forward_kernel(
    query, key, cos, sin, address_cos, address_sin, slot, closes, turned, local, addressed,
    query_b, query_t, query_h, key_b, key_t, key_h, cos_b, cos_t, cos_h, length, slots,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAIRS: tl.constexpr, WIDTH: tl.constexpr,
    REST: tl.constexpr, REST_WIDTH: tl.constexpr, INTERLEAVED: tl.constexpr, LOCAL: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(1).to(tl.int64)
    lane = tl.arange(0, WIDTH)
    if tl.program_id(2) == 0:
        turn_queries(
            query, query_b, query_t, query_h, turned, tl.cast(length, tl.int64) * (HEADS * DIM), HEADS * DIM, DIM, 1.0,
            cos, sin, address_cos, address_sin, slot, closes, lane, cos_b, cos_t, cos_h, length, slots,
            HEADS, KV_HEADS, DIM, PAIRS, REST, REST_WIDTH, INTERLEAVED, ROWS,
        )  # fmt: skip
    else:
        token, head, is_there = places(tl.program_id(0), length, KV_HEADS, ROWS)
        cosine, sine = local_turn(cos, sin, batch, token, head, lane, is_there, PAIRS, cos_b, cos_t, cos_h)
        to_cos, to_sin = address_turn(
            address_cos, address_sin, slot, batch, token, head, lane, is_there, length, slots, KV_HEADS, PAIRS
        )
        rows = offsets(batch, token, head, key_b, key_t, key_h)
        out = packed_offsets(batch, token, head, length, KV_HEADS, DIM)
        a, b = load_pairs(key, rows, is_there, lane, PAIRS, INTERLEAVED)
        if LOCAL:
            here_a, here_b = turn(a, b, cosine, sine)
            store_pairs(local, out, is_there, lane, here_a, here_b, PAIRS, INTERLEAVED)
        cosine, sine = turn(cosine, sine, to_cos, to_sin)
        there_a, there_b = turn(a, b, cosine, sine)
        store_pairs(addressed, out, is_there, lane, there_a, there_b, PAIRS, INTERLEAVED)
        if REST:
            if LOCAL:
                copy_rest(key, rows, local, out, is_there, PAIRS, REST, REST_WIDTH)
            copy_rest(key, rows, addressed, out, is_there, PAIRS, REST, REST_WIDTH)


@triton.jit
def by_angle(grad_a, grad_b, a, b):
    """A turn by d more would change (a, b) by d (-b, a)."""
    return grad_b * a - grad_a * b


@triton.jit
def backward_kernel(
    turned_grad, local_grad, addressed_grad, turned, addressed,
    cos, sin, address_cos, address_sin, slot, closes, query_grad, key_grad, angle_grad,
    turned_b, turned_t, turned_h, local_b, local_t, local_h, addressed_b, addressed_t, addressed_h,
    query_b, query_t, query_h, key_b, key_t, key_h, cos_b, cos_t, cos_h, length, slots,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAIRS: tl.constexpr, WIDTH: tl.constexpr,
    REST: tl.constexpr, REST_WIDTH: tl.constexpr, INTERLEAVED: tl.constexpr, LOCAL: tl.constexpr, ROWS: tl.constexpr,
    TO_ANGLES: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(1).to(tl.int64)
    lane = tl.arange(0, WIDTH)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    if tl.program_id(2) == 0:
        turn_queries(
            turned_grad, turned_b, turned_t, turned_h, query_grad, query_b, query_t, query_h, -1.0,
            cos, sin, address_cos, address_sin, slot, closes, lane, cos_b, cos_t, cos_h, length, slots,
            HEADS, KV_HEADS, DIM, PAIRS, REST, REST_WIDTH, INTERLEAVED, ROWS,
        )  # fmt: skip
    else:
        token, head, is_there = places(tl.program_id(0), length, KV_HEADS, ROWS)
        cosine, sine = local_turn(cos, sin, batch, token, head, lane, is_there, PAIRS, cos_b, cos_t, cos_h)
        to_cos, to_sin = address_turn(
            address_cos, address_sin, slot, batch, token, head, lane, is_there, length, slots, KV_HEADS, PAIRS
        )
        local_rows = offsets(batch, token, head, local_b, local_t, local_h)
        there_rows = offsets(batch, token, head, addressed_b, addressed_t, addressed_h)
        out = offsets(batch, token, head, key_b, key_t, key_h)
        there_a, there_b = load_pairs(addressed_grad, there_rows, is_there, lane, PAIRS, INTERLEAVED)
        # Addressed keys are local ones turned on: their gradient comes back by way of the local ones.
        a, b = turn(there_a, there_b, to_cos, -to_sin)
        if LOCAL:
            here_a, here_b = load_pairs(local_grad, local_rows, is_there, lane, PAIRS, INTERLEAVED)
            a += here_a
            b += here_b
        a, b = turn(a, b, cosine, -sine)
        store_pairs(key_grad, out, is_there, lane, a, b, PAIRS, INTERLEAVED)
        if REST:
            lanes = tl.arange(0, REST_WIDTH)
            rest = is_there[:, None] & (lanes < REST)[None, :]
            column = (2 * PAIRS + lanes)[None, :]
            kept = tl.load(addressed_grad + there_rows[:, None] + column, mask=rest, other=0.0).to(tl.float32)
            if LOCAL:
                kept += tl.load(local_grad + local_rows[:, None] + column, mask=rest, other=0.0).to(tl.float32)
            tl.store(key_grad + out[:, None] + column, kept.to(key_grad.dtype.element_ty), mask=rest)
        if TO_ANGLES:
            rows = packed_offsets(batch, token, head, length, KV_HEADS, DIM)
            a, b = load_pairs(addressed, rows, is_there, lane, PAIRS, INTERLEAVED)
            angle = by_angle(there_a, there_b, a, b)
            closing = is_there & (tl.load(closes + batch * length + token) != 0)
            for member in tl.static_range(GROUP):
                reader = head * GROUP + member
                rows = offsets(batch, token, reader, turned_b, turned_t, turned_h)
                grad_a, grad_b = load_pairs(turned_grad, rows, closing, lane, PAIRS, INTERLEAVED)
                rows = packed_offsets(batch, token, reader, length, HEADS, DIM)
                a, b = load_pairs(turned, rows, closing, lane, PAIRS, INTERLEAVED)
                angle += by_angle(grad_a, grad_b, a, b)
            place = packed_offsets(batch, token, head, length, KV_HEADS, PAIRS)
            inside = is_there[:, None] & (lane < PAIRS)[None, :]
            tl.store(angle_grad + place[:, None] + lane[None, :], angle, mask=inside)


@triton.jit
def sum_kernel(
    by_token, slot, by_slot, length, slots, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr
):
    """The program of a unit's first token sums the unit; that of a number which no unit has writes zeros there."""
    token = tl.program_id(0)
    batch = tl.program_id(2).to(tl.int64)
    lane = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = lane < COLUMNS
    slot += batch * length
    by_slot += lane
    rows = batch * slots
    if (token < slots) & (token > tl.load(slot + length - 1)):
        tl.store(by_slot + (rows + token) * COLUMNS, tl.zeros([WIDTH], tl.float32), mask=inside)
    if token < length:
        own = tl.load(slot + token)
        if (token == 0) | (tl.load(slot + tl.maximum(token - 1, 0)) != own):
            sums = tl.zeros([TOKENS, WIDTH], tl.float32)
            column = token + tl.arange(0, TOKENS)
            more = True
            while more:
                # Loaded before it is known whether they are of the unit: no load waits for another then.
                near = tl.minimum(column, length - 1)
                is_member = (column < length) & (tl.load(slot + near) == own)
                row = (batch * length + near) * COLUMNS
                given = tl.load(by_token + row[:, None] + lane[None, :], mask=inside[None, :], other=0.0)
                sums += tl.where(is_member[:, None], given, 0.0)
                column += TOKENS
                more = tl.sum(is_member.to(tl.int32), 0) == TOKENS
            tl.store(by_slot + (rows + own) * COLUMNS, tl.sum(sums, 0), mask=inside)
