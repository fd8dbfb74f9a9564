"""Matrix products of slots with a weight, in which slots that no unit has are left out.

A text has as many slots as tokens, whatever its boundaries, but few of them are units: a library would multiply zeros
most of the time. How many there are, the GPU alone knows, and need not tell. Products are those of float32: three of
TF32 each, which together lose no more.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def units_of(slot, rows, length):
    """How many slots of a row of text are units: the last token's is the last."""
    return (tl.load(slot + rows + length - 1) + 1).to(tl.int32)


@triton.jit
def rows_kernel(
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
        for start in range(0, INNER, AT_ONCE):
            inner = start + tl.arange(0, AT_ONCE)
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
def weight_kernel(
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
        for start in range(0, units, AT_ONCE):
            row = start + tl.arange(0, AT_ONCE)
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
