"""Addresses of all units of whole sequences, in two kernels; ``contentrope.address`` defines the numbers.

The first rotates the embeddings, sums them by unit and normalises the means; the second projects them to angles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from contentrope.kernels.ops import (
    Differentiable,
    Operator,
    broadcast_strides,
    last_contiguous,
    power_of_two,
    programs,
    start,
)

NUMBERS_AT_ONCE, MOST_TOKENS, WARPS = 8192, 32, 8
"""Of a unit's embeddings, when they are summed up."""
FEW = {"ROWS": 16, "COLUMNS": 32, "AT_ONCE": 64, "num_warps": 4, "num_stages": 4}
MANY = {"ROWS": 32, "COLUMNS": 64, "AT_ONCE": 32, "num_warps": 4, "num_stages": 4}
MANY_FROM = 4096
"""Tokens of a text from which on it is taken to have many units."""
WEIGHT_TILE = {"ROWS": 32, "COLUMNS": 64, "AT_ONCE": 32, "num_warps": 4, "num_stages": 2}

# The descriptor's kernels: one program for every token.
#
# Forward, the program of a unit's first token rotates and sums the tokens of the unit, some at a time and always in the
# same order, so that the result is the same every time, and normalises the mean. Backward, every token takes its share
# of its unit's gradient.
#
# An embedding is read in three parts, so that neighbours in memory are loaded together: the first dimensions of all
# rotated pairs, head after head, their second dimensions, and what is passed through as it is.


@triton.jit
def parts_of(
    HEAD: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr, ROTATED: tl.constexpr, PASSED: tl.constexpr,
    WIDTH: tl.constexpr, PASSED_WIDTH: tl.constexpr,
):  # fmt: skip
    """For every pair its head, its number there, and where its two dimensions lie; where the dimensions lie that are
    passed through; and which of these there are."""
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
    passed = tl.arange(0, PASSED_WIDTH)
    third = passed // rest * HEAD + 2 * PAIRS + passed % rest
    return head, pair, first, second, third, lane < ROTATED, passed < PASSED


@triton.jit
def load_parts(row, first, second, third, rotated, passed):
    return (
        tl.load(row + first, mask=rotated, other=0.0).to(tl.float32),
        tl.load(row + second, mask=rotated, other=0.0).to(tl.float32),
        tl.load(row + third, mask=passed, other=0.0).to(tl.float32),
    )


@triton.jit
def store_parts(row, a, b, c, first, second, third, rotated, passed):
    kind = row.dtype.element_ty
    tl.store(row + first, a.to(kind), mask=rotated)
    tl.store(row + second, b.to(kind), mask=rotated)
    tl.store(row + third, c.to(kind), mask=passed)


@triton.jit
def rotation_at(cos, sin, place, rotated):
    """Cosine and sine of every pair; those that are not there stay as they are."""
    return tl.load(cos + place, mask=rotated, other=1.0), tl.load(sin + place, mask=rotated, other=0.0)


@triton.jit
def total_of(a, b, c):
    return tl.sum(a, 0) + tl.sum(b, 0) + tl.sum(c, 0)


@triton.jit
def describe_kernel(
    embedded, slot, cos, sin, weight, bias, normed, centred, deviation, tokens,
    embedded_b, embedded_t, rotation_b, rotation_t, rotation_h, length, epsilon,
    DIM: tl.constexpr, HEAD: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr,
    ROTATED: tl.constexpr, PASSED: tl.constexpr, WIDTH: tl.constexpr, PASSED_WIDTH: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    head, pair, first, second, third, rotated, passed = parts_of(
        HEAD, PAIRS, INTERLEAVED, ROTATED, PASSED, WIDTH, PASSED_WIDTH
    )
    slots = slot + batch * length
    own = tl.load(slots + token)
    before = tl.load(slots + tl.maximum(token - 1, 0))
    rows = batch * length
    if token > tl.load(slots + length - 1):  # no unit has this number
        shift_a, shift_b, shift_c = load_parts(bias, first, second, third, rotated, passed)
        row = (rows + token) * DIM
        store_parts(normed + row, shift_a, shift_b, shift_c, first, second, third, rotated, passed)
        store_parts(
            centred + row, tl.zeros([WIDTH], tl.float32), tl.zeros([WIDTH], tl.float32),
            tl.zeros([PASSED_WIDTH], tl.float32), first, second, third, rotated, passed,
        )  # fmt: skip
        tl.store(deviation + rows + token, 0.0)
        tl.store(tokens + rows + token, 1.0)
    if (token == 0) | (before != own):
        sums_a = tl.zeros([TOKENS, WIDTH], tl.float32)
        sums_b = tl.zeros([TOKENS, WIDTH], tl.float32)
        sums_c = tl.zeros([TOKENS, PASSED_WIDTH], tl.float32)
        column = token + tl.arange(0, TOKENS)
        members = 0
        more = True
        while more:
            # Loaded before it is known whether they are of the unit: no load waits for another then.
            near = tl.minimum(column, length - 1).to(tl.int64)
            is_member = ((column < length) & (tl.load(slots + near) == own))[:, None]
            a, b, c = load_parts(
                (embedded + batch * embedded_b + near * embedded_t)[:, None],
                first[None, :], second[None, :], third[None, :], rotated[None, :], passed[None, :],
            )  # fmt: skip
            place = (batch * rotation_b + near * rotation_t)[:, None] + (head * rotation_h + pair)[None, :]
            cosine, sine = rotation_at(cos, sin, place, rotated[None, :])
            sums_a += tl.where(is_member, a * cosine - b * sine, 0.0)
            sums_b += tl.where(is_member, b * cosine + a * sine, 0.0)
            sums_c += tl.where(is_member, c, 0.0)
            found = tl.sum(tl.sum(is_member.to(tl.int32), 1), 0)
            members += found
            column += TOKENS
            more = found == TOKENS
        count = members.to(tl.float32)  # type: ignore[attr-defined]  # in a kernel
        a, b, c = tl.sum(sums_a, 0) / count, tl.sum(sums_b, 0) / count, tl.sum(sums_c, 0) / count
        mean = total_of(a, b, c) / DIM
        a = tl.where(rotated, a - mean, 0.0)
        b = tl.where(rotated, b - mean, 0.0)
        c = tl.where(passed, c - mean, 0.0)
        inverse = 1.0 / tl.sqrt(total_of(a * a, b * b, c * c) / DIM + epsilon)
        scale_a, scale_b, scale_c = load_parts(weight, first, second, third, rotated, passed)
        shift_a, shift_b, shift_c = load_parts(bias, first, second, third, rotated, passed)
        a, b, c = a * inverse, b * inverse, c * inverse
        row = (rows + own) * DIM
        store_parts(centred + row, a, b, c, first, second, third, rotated, passed)
        store_parts(
            normed + row, a * scale_a + shift_a, b * scale_b + shift_b, c * scale_c + shift_c,
            first, second, third, rotated, passed,
        )  # fmt: skip
        tl.store(deviation + rows + own, inverse)
        tl.store(tokens + rows + own, count)


@triton.jit
def before_norm(grad, centred, scale, mean, along, inverse):
    """The gradient of a LayerNorm's input, from the means over all dimensions of two products."""
    return inverse * (grad * scale - mean - centred * along)


@triton.jit
def describe_backward_kernel(
    grad, slot, cos, sin, weight, centred, deviation, tokens, embedded_grad,
    rotation_b, rotation_t, rotation_h, length,
    DIM: tl.constexpr, HEAD: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr,
    ROTATED: tl.constexpr, PASSED: tl.constexpr, WIDTH: tl.constexpr, PASSED_WIDTH: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    head, pair, first, second, third, rotated, passed = parts_of(
        HEAD, PAIRS, INTERLEAVED, ROTATED, PASSED, WIDTH, PASSED_WIDTH
    )
    unit = batch * length + tl.load(slot + batch * length + token)
    inverse, count = tl.load(deviation + unit), tl.load(tokens + unit)
    given_a, given_b, given_c = load_parts(grad + unit * DIM, first, second, third, rotated, passed)
    scale_a, scale_b, scale_c = load_parts(weight, first, second, third, rotated, passed)
    ours_a, ours_b, ours_c = load_parts(centred + unit * DIM, first, second, third, rotated, passed)
    mean = total_of(given_a * scale_a, given_b * scale_b, given_c * scale_c) / DIM
    along = total_of(given_a * scale_a * ours_a, given_b * scale_b * ours_b, given_c * scale_c * ours_c) / DIM
    a = before_norm(given_a, ours_a, scale_a, mean, along, inverse) / count
    b = before_norm(given_b, ours_b, scale_b, mean, along, inverse) / count
    c = before_norm(given_c, ours_c, scale_c, mean, along, inverse) / count
    place = batch * rotation_b + token.to(tl.int64) * rotation_t + head * rotation_h + pair
    cosine, sine = rotation_at(cos, sin, place, rotated)
    row = embedded_grad + (batch * length + token) * DIM
    store_parts(row, a * cosine + b * sine, b * cosine - a * sine, c, first, second, third, rotated, passed)


def _allocate_described(given: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shape = given.embedded.shape
    normed, centred = (given.embedded.new_empty(shape, dtype=torch.float32) for _ in range(2))
    deviation, tokens = (given.embedded.new_empty(shape[:2], dtype=torch.float32) for _ in range(2))
    return normed, centred, deviation, tokens


def _describe(results: tuple[Tensor, ...], given: Any) -> None:
    batch, length, dim = given.embedded.shape
    if given.embedded.numel():
        embedded = last_contiguous(given.embedded)
        cos, sin, strides, sizes = _rotations_and_sizes(given, batch, length, dim)
        start(
            describe_kernel, (length, batch),
            (embedded, given.slot.contiguous(), cos, sin, given.weight, given.bias, *results),
            (embedded.stride(0), embedded.stride(1), *strides, length, given.epsilon),
            **sizes, TOKENS=_tokens_at_once(dim), num_warps=WARPS,
        )  # fmt: skip


def _allocate_embedded(given: Any) -> Tensor:
    return given.grad.new_empty(given.grad.shape, dtype=given.dtype)


def _describe_backward(embedded_grad: Tensor, given: Any) -> None:
    batch, length, dim = given.grad.shape
    if given.grad.numel():
        cos, sin, strides, sizes = _rotations_and_sizes(given, batch, length, dim)
        kept = given.centred, given.deviation, given.tokens
        start(
            describe_backward_kernel, (length, batch),
            (given.grad.contiguous(), given.slot.contiguous(), cos, sin, given.weight, *kept, embedded_grad),
            (*strides, length), **sizes,
        )  # fmt: skip


def _rotations_and_sizes(given: Any, batch: int, length: int, dim: int) -> tuple[Any, ...]:
    pairs, heads = given.cos.shape[3], dim // given.head_dim
    rotated, passed = heads * pairs, heads * (given.head_dim - 2 * pairs)
    sizes = {
        "DIM": dim,
        "HEAD": given.head_dim,
        "PAIRS": pairs,
        "INTERLEAVED": given.interleaved,
        "ROTATED": rotated,
        "PASSED": passed,
        "WIDTH": power_of_two(rotated),
        "PASSED_WIDTH": power_of_two(max(passed, 1)),
    }
    return *broadcast_strides(given.cos, given.sin, (batch, length, heads, pairs)), sizes


def _tokens_at_once(dim: int) -> int:
    """
    >>> [_tokens_at_once(dim) for dim in (64, 768, 16384)]
    [32, 8, 1]
    """
    return min(MOST_TOKENS, max(1, NUMBERS_AT_ONCE // power_of_two(dim)))


# Not by names: two gradients are left to PyTorch, as the compiler makes them one with what follows.


def _keep_described(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)  # nobody differentiates what is kept for the backward pass
    embedded, slot, cos, sin, weight, bias, _, head_dim, interleaved = inputs
    _, centred, deviation, tokens = output
    ctx.save_for_backward(slot, cos, sin, weight, centred, deviation, tokens)
    ctx.settings = head_dim, interleaved, embedded.dtype, bias.dtype


def _differentiate_described(
    backward: Callable[..., Any], ctx: Any, grad: Tensor, *unused: None
) -> tuple[Tensor | None, ...]:
    slot, cos, sin, weight, centred, deviation, tokens = ctx.saved_tensors
    head_dim, interleaved, dtype, bias_dtype = ctx.settings
    to_embedded = backward(grad, slot, cos, sin, weight, centred, deviation, tokens, head_dim, interleaved, dtype)
    to_weight = (grad * centred).sum((0, 1)).to(weight.dtype)
    return to_embedded, None, None, None, to_weight, grad.sum((0, 1)).to(bias_dtype), None, None, None


unit_descriptors = Differentiable(
    Operator(
        "unit_descriptors(Tensor embedded, Tensor slot, Tensor cos, Tensor sin, Tensor weight, Tensor bias, "
        "float epsilon, SymInt head_dim, bool interleaved)"
        " -> (Tensor normed, Tensor centred, Tensor deviation, Tensor tokens)",
        _allocate_described,
        _describe,
    ),
    Operator(
        "unit_descriptors_backward(Tensor grad, Tensor slot, Tensor cos, Tensor sin, Tensor weight, Tensor centred, "
        "Tensor deviation, Tensor tokens, SymInt head_dim, bool interleaved, ScalarType dtype) -> Tensor",
        _allocate_embedded,
        _describe_backward,
    ),
    _keep_described,
    _differentiate_described,
)
"""The normalised descriptor of every slot (batch, seq, dim) in float32; and, for the backward pass, the same
before weight and bias, the inverse deviations, and the number of tokens. Slots are non-decreasing."""


# Matrix products of slots with a weight, in which slots that no unit has are left out.
#
# A text has as many slots as tokens, whatever its boundaries, but few of them are units: a library would multiply zeros
# most of the time. How many there are, the GPU alone knows, and need not tell. Products are those of float32: three of
# TF32 each, which together lose no more.


@triton.jit
def units_of(slot, rows, length):
    """How many slots of a row of text are units: the last token's is the last."""
    return (tl.load(slot + rows + length - 1) + 1).to(tl.int32)


@triton.jit
def project_kernel(
    given, slot, weight, bias, out, length,
    INNER: tl.constexpr, OUTER: tl.constexpr, INNER_STEP: tl.constexpr, OUTER_STEP: tl.constexpr,
    HAS_BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Every unit's row times a weight that lies in memory either way; other slots get zeros."""
    first = tl.program_id(0) * ROWS
    row = first + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    rows = tl.program_id(2).to(tl.int64) * length
    units = units_of(slot, rows, length)
    is_unit = (row < units)[:, None]
    is_there = (column < OUTER)[None, :]
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    if first < units:
        for begin in range(0, INNER, AT_ONCE):
            inner = begin + tl.arange(0, AT_ONCE)
            along = given + (rows + row)[:, None] * INNER + inner[None, :]
            ours = tl.load(along, mask=is_unit & (inner < INNER)[None, :], other=0.0)
            place = inner[:, None] * INNER_STEP + column[None, :] * OUTER_STEP
            theirs = tl.load(weight + place, mask=(inner < INNER)[:, None] & is_there, other=0.0)
            sums = tl.dot(ours, theirs, sums, input_precision="tf32x3")
        if HAS_BIAS:
            sums += tl.load(bias + column, mask=column < OUTER, other=0.0)[None, :]
        sums = tl.where(is_unit, sums, 0.0)
    tl.store(out + (rows + row)[:, None] * OUTER + column[None, :], sums, mask=(row < length)[:, None] & is_there)


@triton.jit
def project_weight_kernel(
    grad, given, slot, to_weight, to_bias, batch, length,
    OUT: tl.constexpr, INNER: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """The gradients of weight and bias: sums over the units of all texts, always in the same order."""
    out = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inner = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    of_bias = tl.zeros([ROWS], tl.float32)
    rows = tl.full([], 0, tl.int64)
    for _ in range(batch):
        units = units_of(slot, rows, length)
        for begin in range(0, units, AT_ONCE):
            row = begin + tl.arange(0, AT_ONCE)
            ours = tl.load(
                grad + (rows + row)[None, :] * OUT + out[:, None],
                mask=(row < units)[None, :] & (out < OUT)[:, None], other=0.0,
            )  # fmt: skip
            theirs = tl.load(
                given + (rows + row)[:, None] * INNER + inner[None, :],
                mask=(row < units)[:, None] & (inner < INNER)[None, :], other=0.0,
            )  # fmt: skip
            sums = tl.dot(ours, theirs, sums, input_precision="tf32x3")
            of_bias += tl.sum(ours, 1)
        rows += length
    there = (out < OUT)[:, None] & (inner < INNER)[None, :]
    tl.store(to_weight + out[:, None] * INNER + inner[None, :], sums, mask=there)
    if tl.program_id(1) == 0:
        tl.store(to_bias + out, of_bias, mask=out < OUT)


def _allocate_angles(given: Any) -> Tensor:
    return given.normed.new_empty(*given.normed.shape[:2], len(given.weight))


def _project(angles: Tensor, given: Any) -> None:
    _product(given.normed, given.slot, given.weight.t(), given.bias, angles)


def _allocate_gradients(given: Any) -> tuple[Tensor, Tensor, Tensor]:
    normed, weight = given.normed, given.weight
    return normed.new_empty(normed.shape), weight.new_empty(weight.shape), weight.new_empty(len(weight))


def _project_backward(results: tuple[Tensor, Tensor, Tensor], given: Any) -> None:
    to_normed, to_weight, to_bias = results
    grad = given.angles_grad.contiguous()
    _product(grad, given.slot, given.weight, None, to_normed)
    if not grad.numel():
        to_weight.zero_()
        to_bias.zero_()
        return
    (out, inner), (batch, length) = given.weight.shape, grad.shape[:2]
    start(
        project_weight_kernel, (programs(out, WEIGHT_TILE["ROWS"]), programs(inner, WEIGHT_TILE["COLUMNS"])),
        (grad, given.normed.contiguous(), given.slot.contiguous(), to_weight, to_bias), (batch, length),
        OUT=out, INNER=inner, **WEIGHT_TILE,
    )  # fmt: skip


def _product(given: Tensor, slot: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    (batch, length, inner), outer = given.shape, out.shape[-1]
    tile = FEW if length < MANY_FROM else MANY
    if out.numel():
        start(
            project_kernel, (programs(length, tile["ROWS"]), programs(outer, tile["COLUMNS"]), batch),
            (given.contiguous(), slot.contiguous(), weight, weight if bias is None else bias.contiguous(), out),
            (length,),
            INNER=inner, OUTER=outer, INNER_STEP=weight.stride(0), OUTER_STEP=weight.stride(1),
            HAS_BIAS=bias is not None, **tile,
        )  # fmt: skip


unit_angles = Differentiable(
    Operator(
        "unit_angles(Tensor normed, Tensor slot, Tensor weight, Tensor bias) -> Tensor angles",
        _allocate_angles,
        _project,
    ),
    Operator(
        "unit_angles_backward(Tensor angles_grad, Tensor slot, Tensor normed, Tensor weight)"
        " -> (Tensor normed_grad, Tensor weight_grad, Tensor bias_grad)",
        _allocate_gradients,
        _project_backward,
    ),
)
"""Of normalised descriptors (batch, slots, dim), the slot of every token, as many as slots and counted without gaps
from 0 on, a weight (angles, dim) and a bias, all in float32: angles (batch, slots, angles), zero where no unit is."""
