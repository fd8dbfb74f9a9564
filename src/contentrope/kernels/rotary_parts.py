"""What kernels that rotate queries and keys are made of: which rows a program has, pairs of dimensions, rotations."""

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
def rotate_pair(a, b, cosine, sine):
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
def local_rotation(cos, sin, batch, token, head, lane, is_there, PAIRS: tl.constexpr, stride_b, stride_t, stride_h):
    inside = is_there[:, None] & (lane < PAIRS)[None, :]
    place = offsets(batch, token, head, stride_b, stride_t, stride_h)[:, None] + lane[None, :]
    return tl.load(cos + place, mask=inside, other=1.0), tl.load(sin + place, mask=inside, other=0.0)


@triton.jit
def address_rotation(
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
    """The dimensions that are not rotated."""
    lane = tl.arange(0, REST_WIDTH)
    inside = is_there[:, None] & (lane < REST)[None, :]
    column = 2 * PAIRS + lane
    value = tl.load(source + rows[:, None] + column[None, :], mask=inside, other=0.0)
    tl.store(target + target_rows[:, None] + column[None, :], value, mask=inside)


@triton.jit
def by_angle(grad_a, grad_b, a, b):
    """A rotation by d more would change (a, b) by d (-b, a)."""
    return grad_b * a - grad_a * b
