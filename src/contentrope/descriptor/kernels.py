"""The descriptor's kernels: one program for every token.

Forward, the program of a unit's first token turns and sums the tokens of the unit in order, so that the result is the
same every time, and normalises the mean. Backward, every token takes its share of its unit's gradient.

Lanes are the dimensions of an embedding, head by head; a dimension turns with its partner, which is loaded beside it.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def pairing(lane, HEAD: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr):
    """For every lane: its head, its pair, its partner's lane, and the sign of the partner's share."""
    place = lane % HEAD
    if INTERLEAVED:
        pair = place // 2
        is_first = place % 2 == 0
        distance = 1
    else:
        is_first = place < PAIRS
        pair = tl.where(is_first, place, place - PAIRS)
        distance = PAIRS
    turns = place < 2 * PAIRS
    partner = tl.where(turns, tl.where(is_first, lane + distance, lane - distance), lane)
    sign = tl.where(is_first, -1.0, 1.0)
    return lane // HEAD, tl.where(turns, pair, 0), partner, sign, turns


@triton.jit
def turn_of(cos, sin, head, pair, turns, head_stride):
    """Cosine and sine of one token for every lane; lanes that do not turn keep what they have."""
    place = head * head_stride + pair
    return tl.load(cos + place, mask=turns, other=1.0), tl.load(sin + place, mask=turns, other=0.0)


@triton.jit
def forward_kernel(
    embedded, slot, cos, sin, weight, bias, normed, centred, deviation, tokens,
    embedded_b, embedded_t, turn_b, turn_t, turn_h, length, epsilon,
    DIM: tl.constexpr, WIDTH: tl.constexpr, HEAD: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    lane = tl.arange(0, WIDTH)
    inside = lane < DIM
    scale = tl.load(weight + lane, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(bias + lane, mask=inside, other=0.0).to(tl.float32)
    slots = slot + batch * length
    own = tl.load(slots + token)
    rows = batch * length
    if token > tl.load(slots + length - 1):  # no unit has this number
        tl.store(normed + (rows + token) * DIM + lane, shift, mask=inside)
        tl.store(centred + (rows + token) * DIM + lane, tl.zeros([WIDTH], tl.float32), mask=inside)
        tl.store(deviation + rows + token, 0.0)
        tl.store(tokens + rows + token, 1.0)
    before = tl.load(slots + tl.maximum(token - 1, 0))
    if (token == 0) | (before != own):
        head, pair, partner, sign, turns = pairing(lane, HEAD, PAIRS, INTERLEAVED)
        total = tl.zeros([WIDTH], tl.float32)
        column = token
        while (column < length) & (tl.load(slots + tl.minimum(column, length - 1)) == own):
            row = embedded + batch * embedded_b + column.to(tl.int64) * embedded_t
            value = tl.load(row + lane, mask=inside, other=0.0).to(tl.float32)
            other = tl.load(row + partner, mask=inside, other=0.0).to(tl.float32)
            place = batch * turn_b + column.to(tl.int64) * turn_t
            cosine, sine = turn_of(cos + place, sin + place, head, pair, turns & inside, turn_h)
            total += value * cosine + sign * other * sine
            column += 1
        count = (column - token).to(tl.float32)
        mean = total / count
        offset = tl.where(inside, mean - tl.sum(mean, 0) / DIM, 0.0)
        inverse = 1.0 / tl.sqrt(tl.sum(offset * offset, 0) / DIM + epsilon)
        unit = (rows + own) * DIM + lane
        tl.store(centred + unit, offset * inverse, mask=inside)
        tl.store(normed + unit, offset * inverse * scale + shift, mask=inside)
        tl.store(deviation + rows + own, inverse)
        tl.store(tokens + rows + own, count)


@triton.jit
def before_norm(grad, centred, scale, mean, along, inverse):
    """The gradient of a LayerNorm's input, from the means over all dimensions of two products."""
    return inverse * (grad * scale - mean - centred * along)


@triton.jit
def backward_kernel(
    grad, slot, cos, sin, weight, centred, deviation, tokens, embedded_grad,
    turn_b, turn_t, turn_h, length,
    DIM: tl.constexpr, WIDTH: tl.constexpr, HEAD: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    lane = tl.arange(0, WIDTH)
    inside = lane < DIM
    head, pair, partner, sign, turns = pairing(lane, HEAD, PAIRS, INTERLEAVED)
    unit = batch * length + tl.load(slot + batch * length + token)
    inverse, count = tl.load(deviation + unit), tl.load(tokens + unit)
    given = tl.load(grad + unit * DIM + lane, mask=inside, other=0.0)
    scale = tl.load(weight + lane, mask=inside, other=0.0).to(tl.float32)
    ours = tl.load(centred + unit * DIM + lane, mask=inside, other=0.0)
    mean = tl.sum(given * scale, 0) / DIM
    along = tl.sum(given * scale * ours, 0) / DIM
    own = before_norm(given, ours, scale, mean, along, inverse)
    other = before_norm(
        tl.load(grad + unit * DIM + partner, mask=inside, other=0.0),
        tl.load(centred + unit * DIM + partner, mask=inside, other=0.0),
        tl.load(weight + partner, mask=inside, other=0.0).to(tl.float32),
        mean,
        along,
        inverse,
    )
    place = batch * turn_b + token.to(tl.int64) * turn_t
    cosine, sine = turn_of(cos + place, sin + place, head, pair, turns & inside, turn_h)
    back = (own * cosine - sign * other * sine) / count
    row = embedded_grad + (batch * length + token) * DIM
    tl.store(row + lane, back.to(embedded_grad.dtype.element_ty), mask=inside)
