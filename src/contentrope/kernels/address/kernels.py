"""The descriptor's kernels: one program for every token.

Forward, the program of a unit's first token turns and sums the tokens of the unit, some at a time and always in the
same order, so that the result is the same every time, and normalises the mean. Backward, every token takes its share of
its unit's gradient.

An embedding is read in three parts, so that neighbours in memory are loaded together: the first dimensions of all pairs
that turn, head after head, their second dimensions, and what does not turn.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def parts_of(
    HEAD: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr, TURNING: tl.constexpr, STILL: tl.constexpr,
    WIDTH: tl.constexpr, STILL_WIDTH: tl.constexpr,
):  # fmt: skip
    """For every pair its head, its number there, and where its two dimensions lie; where the dimensions lie that do not
    turn; and which of these there are."""
    lane = tl.arange(0, WIDTH)
    head = lane // PAIRS
    pair = lane % PAIRS
    if INTERLEAVED:
        first = head * HEAD + 2 * pair
        second = first + 1
    else:
        first = head * HEAD + pair
        second = first + PAIRS
    rest: tl.constexpr = HEAD - 2 * PAIRS if HEAD > 2 * PAIRS else 1
    still = tl.arange(0, STILL_WIDTH)
    third = still // rest * HEAD + 2 * PAIRS + still % rest
    return head, pair, first, second, third, lane < TURNING, still < STILL


@triton.jit
def load_parts(row, first, second, third, turning, still):
    return (
        tl.load(row + first, mask=turning, other=0.0).to(tl.float32),
        tl.load(row + second, mask=turning, other=0.0).to(tl.float32),
        tl.load(row + third, mask=still, other=0.0).to(tl.float32),
    )


@triton.jit
def store_parts(row, a, b, c, first, second, third, turning, still):
    kind = row.dtype.element_ty
    tl.store(row + first, a.to(kind), mask=turning)
    tl.store(row + second, b.to(kind), mask=turning)
    tl.store(row + third, c.to(kind), mask=still)


@triton.jit
def turn_of(cos, sin, place, turning):
    """Cosine and sine of every pair; those that are not there stay as they are."""
    return tl.load(cos + place, mask=turning, other=1.0), tl.load(sin + place, mask=turning, other=0.0)


@triton.jit
def total_of(a, b, c):
    return tl.sum(a, 0) + tl.sum(b, 0) + tl.sum(c, 0)


@triton.jit
def forward_kernel(
    embedded, slot, cos, sin, weight, bias, normed, centred, deviation, tokens,
    embedded_b, embedded_t, turn_b, turn_t, turn_h, length, epsilon,
    DIM: tl.constexpr, HEAD: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr,
    TURNING: tl.constexpr, STILL: tl.constexpr, WIDTH: tl.constexpr, STILL_WIDTH: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    head, pair, first, second, third, turning, still = parts_of(
        HEAD, PAIRS, INTERLEAVED, TURNING, STILL, WIDTH, STILL_WIDTH
    )
    slots = slot + batch * length
    own = tl.load(slots + token)
    before = tl.load(slots + tl.maximum(token - 1, 0))
    rows = batch * length
    if token > tl.load(slots + length - 1):  # no unit has this number
        shift_a, shift_b, shift_c = load_parts(bias, first, second, third, turning, still)
        row = (rows + token) * DIM
        store_parts(normed + row, shift_a, shift_b, shift_c, first, second, third, turning, still)
        store_parts(
            centred + row, tl.zeros([WIDTH], tl.float32), tl.zeros([WIDTH], tl.float32),
            tl.zeros([STILL_WIDTH], tl.float32), first, second, third, turning, still,
        )  # fmt: skip
        tl.store(deviation + rows + token, 0.0)
        tl.store(tokens + rows + token, 1.0)
    if (token == 0) | (before != own):
        sums_a = tl.zeros([TOKENS, WIDTH], tl.float32)
        sums_b = tl.zeros([TOKENS, WIDTH], tl.float32)
        sums_c = tl.zeros([TOKENS, STILL_WIDTH], tl.float32)
        column = token + tl.arange(0, TOKENS)
        members = 0
        more = True
        while more:
            # Loaded before it is known whether they are of the unit: no load waits for another then.
            near = tl.minimum(column, length - 1).to(tl.int64)
            is_member = ((column < length) & (tl.load(slots + near) == own))[:, None]
            a, b, c = load_parts(
                (embedded + batch * embedded_b + near * embedded_t)[:, None],
                first[None, :], second[None, :], third[None, :], turning[None, :], still[None, :],
            )  # fmt: skip
            place = (batch * turn_b + near * turn_t)[:, None] + (head * turn_h + pair)[None, :]
            cosine, sine = turn_of(cos, sin, place, turning[None, :])
            sums_a += tl.where(is_member, a * cosine - b * sine, 0.0)
            sums_b += tl.where(is_member, b * cosine + a * sine, 0.0)
            sums_c += tl.where(is_member, c, 0.0)
            found = tl.sum(tl.sum(is_member.to(tl.int32), 1), 0)
            members += found
            column += TOKENS
            more = found == TOKENS
        count = members.to(tl.float32)
        a, b, c = tl.sum(sums_a, 0) / count, tl.sum(sums_b, 0) / count, tl.sum(sums_c, 0) / count
        mean = total_of(a, b, c) / DIM
        a = tl.where(turning, a - mean, 0.0)
        b = tl.where(turning, b - mean, 0.0)
        c = tl.where(still, c - mean, 0.0)
        inverse = 1.0 / tl.sqrt(total_of(a * a, b * b, c * c) / DIM + epsilon)
        scale_a, scale_b, scale_c = load_parts(weight, first, second, third, turning, still)
        shift_a, shift_b, shift_c = load_parts(bias, first, second, third, turning, still)
        a, b, c = a * inverse, b * inverse, c * inverse
        row = (rows + own) * DIM
        store_parts(centred + row, a, b, c, first, second, third, turning, still)
        store_parts(
            normed + row, a * scale_a + shift_a, b * scale_b + shift_b, c * scale_c + shift_c,
            first, second, third, turning, still,
        )  # fmt: skip
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
    DIM: tl.constexpr, HEAD: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr,
    TURNING: tl.constexpr, STILL: tl.constexpr, WIDTH: tl.constexpr, STILL_WIDTH: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    head, pair, first, second, third, turning, still = parts_of(
        HEAD, PAIRS, INTERLEAVED, TURNING, STILL, WIDTH, STILL_WIDTH
    )
    unit = batch * length + tl.load(slot + batch * length + token)
    inverse, count = tl.load(deviation + unit), tl.load(tokens + unit)
    given_a, given_b, given_c = load_parts(grad + unit * DIM, first, second, third, turning, still)
    scale_a, scale_b, scale_c = load_parts(weight, first, second, third, turning, still)
    ours_a, ours_b, ours_c = load_parts(centred + unit * DIM, first, second, third, turning, still)
    mean = total_of(given_a * scale_a, given_b * scale_b, given_c * scale_c) / DIM
    along = total_of(given_a * scale_a * ours_a, given_b * scale_b * ours_b, given_c * scale_c * ours_c) / DIM
    a = before_norm(given_a, ours_a, scale_a, mean, along, inverse) / count
    b = before_norm(given_b, ours_b, scale_b, mean, along, inverse) / count
    c = before_norm(given_c, ours_c, scale_c, mean, along, inverse) / count
    place = batch * turn_b + token.to(tl.int64) * turn_t + head * turn_h + pair
    cosine, sine = turn_of(cos, sin, place, turning)
    row = embedded_grad + (batch * length + token) * DIM
    store_parts(row, a * cosine + b * sine, b * cosine - a * sine, c, first, second, third, turning, still)
