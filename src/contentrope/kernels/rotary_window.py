"""Queries and keys in both versions that a near window asks for, in one kernel: near ones, at ordinary positions, and
far ones: queries rotated on, keys at their local positions and addresses.

As in ``contentrope.kernels.rotary``, whose parts these are made of. NEAR and FAR say which versions are asked for: near
ones are not where queries and keys come at ordinary positions already, far ones not where a whole text is near.
"""

from __future__ import annotations

import triton
import triton.language as tl

from contentrope.kernels.rotary_parts import (
    address_rotation,
    by_angle,
    copy_rest,
    load_pairs,
    local_rotation,
    offsets,
    packed_offsets,
    places,
    rotate_pair,
    store_pairs,
)


@triton.jit
def rotate_window_kernel(
    query, key, cos, sin, address_cos, address_sin, slot, near_cos, near_sin, far_cos, far_sin,
    near_query, near_key, far_key, far_query,
    query_b, query_t, query_h, key_b, key_t, key_h, cos_b, cos_t, cos_h, near_b, near_t, near_h, far_b, far_t, far_h,
    length, slots,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAIRS: tl.constexpr, WIDTH: tl.constexpr,
    REST: tl.constexpr, REST_WIDTH: tl.constexpr, INTERLEAVED: tl.constexpr,
    NEAR: tl.constexpr, FAR: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(1).to(tl.int64)
    lane = tl.arange(0, WIDTH)
    if tl.program_id(2) == 0:
        token, head, is_there = places(tl.program_id(0), length, HEADS, ROWS)
        of_keys = head // (HEADS // KV_HEADS)
        rows = offsets(batch, token, head, query_b, query_t, query_h)
        out = packed_offsets(batch, token, head, length, HEADS, DIM)
        a, b = load_pairs(query, rows, is_there, lane, PAIRS, INTERLEAVED)
        if NEAR:
            cosine, sine = local_rotation(
                near_cos, near_sin, batch, token, of_keys, lane, is_there, PAIRS, near_b, near_t, near_h
            )
            here_a, here_b = rotate_pair(a, b, cosine, sine)
            store_pairs(near_query, out, is_there, lane, here_a, here_b, PAIRS, INTERLEAVED)
            if REST:
                copy_rest(query, rows, near_query, out, is_there, PAIRS, REST, REST_WIDTH)
        if FAR:
            cosine, sine = local_rotation(
                far_cos, far_sin, batch, token, of_keys, lane, is_there, PAIRS, far_b, far_t, far_h
            )
            there_a, there_b = rotate_pair(a, b, cosine, sine)
            store_pairs(far_query, out, is_there, lane, there_a, there_b, PAIRS, INTERLEAVED)
            if REST:
                copy_rest(query, rows, far_query, out, is_there, PAIRS, REST, REST_WIDTH)
    else:
        token, head, is_there = places(tl.program_id(0), length, KV_HEADS, ROWS)
        rows = offsets(batch, token, head, key_b, key_t, key_h)
        out = packed_offsets(batch, token, head, length, KV_HEADS, DIM)
        a, b = load_pairs(key, rows, is_there, lane, PAIRS, INTERLEAVED)
        if NEAR:
            cosine, sine = local_rotation(
                near_cos, near_sin, batch, token, head, lane, is_there, PAIRS, near_b, near_t, near_h
            )
            here_a, here_b = rotate_pair(a, b, cosine, sine)
            store_pairs(near_key, out, is_there, lane, here_a, here_b, PAIRS, INTERLEAVED)
            if REST:
                copy_rest(key, rows, near_key, out, is_there, PAIRS, REST, REST_WIDTH)
        if FAR:
            cosine, sine = local_rotation(cos, sin, batch, token, head, lane, is_there, PAIRS, cos_b, cos_t, cos_h)
            to_cos, to_sin = address_rotation(
                address_cos, address_sin, slot, batch, token, head, lane, is_there, length, slots, KV_HEADS, PAIRS
            )
            cosine, sine = rotate_pair(cosine, sine, to_cos, to_sin)
            there_a, there_b = rotate_pair(a, b, cosine, sine)
            store_pairs(far_key, out, is_there, lane, there_a, there_b, PAIRS, INTERLEAVED)
            if REST:
                copy_rest(key, rows, far_key, out, is_there, PAIRS, REST, REST_WIDTH)


@triton.jit
def sum_rest(
    near, near_rows, far, far_rows, target, rows, is_there,
    PAIRS: tl.constexpr, REST: tl.constexpr, REST_WIDTH: tl.constexpr, NEAR: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """The gradient of dimensions that are not rotated, from those of both versions."""
    lane = tl.arange(0, REST_WIDTH)
    inside = is_there[:, None] & (lane < REST)[None, :]
    column = (2 * PAIRS + lane)[None, :]
    total = tl.zeros([is_there.shape[0], REST_WIDTH], tl.float32)
    if NEAR:
        total += tl.load(near + near_rows[:, None] + column, mask=inside, other=0.0).to(tl.float32)
    if FAR:
        total += tl.load(far + far_rows[:, None] + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(target + rows[:, None] + column, total.to(target.dtype.element_ty), mask=inside)


@triton.jit
def rotate_window_backward_kernel(
    near_query_grad, near_key_grad, far_key_grad, far_query_grad, far_key,
    cos, sin, address_cos, address_sin, slot, near_cos, near_sin, far_cos, far_sin,
    query_grad, key_grad, angle_grad,
    near_query_b, near_query_t, near_query_h, near_key_b, near_key_t, near_key_h, far_key_b, far_key_t, far_key_h,
    far_query_b, far_query_t, far_query_h, query_b, query_t, query_h, key_b, key_t, key_h,
    cos_b, cos_t, cos_h, near_b, near_t, near_h, far_b, far_t, far_h, length, slots,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAIRS: tl.constexpr, WIDTH: tl.constexpr,
    REST: tl.constexpr, REST_WIDTH: tl.constexpr, INTERLEAVED: tl.constexpr,
    NEAR: tl.constexpr, FAR: tl.constexpr, ROWS: tl.constexpr, TO_ANGLES: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(1).to(tl.int64)
    lane = tl.arange(0, WIDTH)
    a = tl.zeros([ROWS, WIDTH], tl.float32)
    b = tl.zeros([ROWS, WIDTH], tl.float32)
    if tl.program_id(2) == 0:
        token, head, is_there = places(tl.program_id(0), length, HEADS, ROWS)
        of_keys = head // (HEADS // KV_HEADS)
        near_rows = offsets(batch, token, head, near_query_b, near_query_t, near_query_h)
        far_rows = offsets(batch, token, head, far_query_b, far_query_t, far_query_h)
        out = offsets(batch, token, head, query_b, query_t, query_h)
        if NEAR:
            cosine, sine = local_rotation(
                near_cos, near_sin, batch, token, of_keys, lane, is_there, PAIRS, near_b, near_t, near_h
            )
            here_a, here_b = load_pairs(near_query_grad, near_rows, is_there, lane, PAIRS, INTERLEAVED)
            a, b = rotate_pair(here_a, here_b, cosine, -sine)
        if FAR:
            cosine, sine = local_rotation(
                far_cos, far_sin, batch, token, of_keys, lane, is_there, PAIRS, far_b, far_t, far_h
            )
            there_a, there_b = load_pairs(far_query_grad, far_rows, is_there, lane, PAIRS, INTERLEAVED)
            there_a, there_b = rotate_pair(there_a, there_b, cosine, -sine)
            a += there_a
            b += there_b
        store_pairs(query_grad, out, is_there, lane, a, b, PAIRS, INTERLEAVED)
        if REST:
            sum_rest(
                near_query_grad, near_rows, far_query_grad, far_rows, query_grad, out, is_there,
                PAIRS, REST, REST_WIDTH, NEAR, FAR,
            )  # fmt: skip
    else:
        token, head, is_there = places(tl.program_id(0), length, KV_HEADS, ROWS)
        near_rows = offsets(batch, token, head, near_key_b, near_key_t, near_key_h)
        far_rows = offsets(batch, token, head, far_key_b, far_key_t, far_key_h)
        out = offsets(batch, token, head, key_b, key_t, key_h)
        angle = tl.zeros([ROWS, WIDTH], tl.float32)
        if NEAR:
            cosine, sine = local_rotation(
                near_cos, near_sin, batch, token, head, lane, is_there, PAIRS, near_b, near_t, near_h
            )
            here_a, here_b = load_pairs(near_key_grad, near_rows, is_there, lane, PAIRS, INTERLEAVED)
            a, b = rotate_pair(here_a, here_b, cosine, -sine)
        if FAR:
            cosine, sine = local_rotation(cos, sin, batch, token, head, lane, is_there, PAIRS, cos_b, cos_t, cos_h)
            to_cos, to_sin = address_rotation(
                address_cos, address_sin, slot, batch, token, head, lane, is_there, length, slots, KV_HEADS, PAIRS
            )
            cosine, sine = rotate_pair(cosine, sine, to_cos, to_sin)
            there_a, there_b = load_pairs(far_key_grad, far_rows, is_there, lane, PAIRS, INTERLEAVED)
            if TO_ANGLES:
                rows = packed_offsets(batch, token, head, length, KV_HEADS, DIM)
                of_a, of_b = load_pairs(far_key, rows, is_there, lane, PAIRS, INTERLEAVED)
                angle = by_angle(there_a, there_b, of_a, of_b)
            there_a, there_b = rotate_pair(there_a, there_b, cosine, -sine)
            a += there_a
            b += there_b
        store_pairs(key_grad, out, is_there, lane, a, b, PAIRS, INTERLEAVED)
        if REST:
            sum_rest(
                near_key_grad, near_rows, far_key_grad, far_rows, key_grad, out, is_there,
                PAIRS, REST, REST_WIDTH, NEAR, FAR,
            )  # fmt: skip
        if TO_ANGLES:
            place = packed_offsets(batch, token, head, length, KV_HEADS, PAIRS)
            inside = is_there[:, None] & (lane < PAIRS)[None, :]
            tl.store(angle_grad + place[:, None] + lane[None, :], angle, mask=inside)
