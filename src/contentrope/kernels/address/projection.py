"""From descriptors to angles: a linear map of the slots that are units, as operators of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from contentrope.kernels.address.products import rows_kernel, weight_kernel
from contentrope.kernels.launch import programs, start
from contentrope.kernels.ops import Differentiable, Operator

FEW = {"ROWS": 16, "COLUMNS": 32, "AT_ONCE": 64, "num_warps": 4, "num_stages": 4}
MANY = {"ROWS": 32, "COLUMNS": 64, "AT_ONCE": 32, "num_warps": 4, "num_stages": 4}
MANY_FROM = 4096
"""Tokens of a text from which on it is taken to have many units."""
WEIGHT_TILE = {"ROWS": 32, "COLUMNS": 64, "AT_ONCE": 32, "num_warps": 4, "num_stages": 2}


def _forward(normed: Tensor, slot: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    angles = normed.new_empty(*normed.shape[:2], len(weight))
    _rows(normed, slot, weight.t(), bias, angles)
    return angles


def _forward_shape(normed: Tensor, slot: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return normed.new_empty(*normed.shape[:2], len(weight))


def _backward(grad: Tensor, slot: Tensor, normed: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    to_normed, to_weight, to_bias = _backward_shapes(grad, slot, normed, weight)
    grad = grad.contiguous()
    _rows(grad, slot, weight, None, to_normed)
    if not grad.numel():
        return to_normed, to_weight.zero_(), to_bias.zero_()
    (out, inner), (batch, length) = weight.shape, grad.shape[:2]
    start(
        weight_kernel, (programs(out, WEIGHT_TILE["ROWS"]), programs(inner, WEIGHT_TILE["COLUMNS"])),
        (grad, normed.contiguous(), slot.contiguous(), to_weight, to_bias), (batch, length),
        OUT=out, INNER=inner, **WEIGHT_TILE,
    )  # fmt: skip
    return to_normed, to_weight, to_bias


def _backward_shapes(grad: Tensor, slot: Tensor, normed: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return normed.new_empty(normed.shape), weight.new_empty(weight.shape), weight.new_empty(len(weight))


def _rows(given: Tensor, slot: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    (batch, length, inner), outer = given.shape, out.shape[-1]
    tile = FEW if length < MANY_FROM else MANY
    if out.numel():
        start(
            rows_kernel, (programs(length, tile["ROWS"]), programs(outer, tile["COLUMNS"]), batch),
            (given.contiguous(), slot.contiguous(), weight, weight if bias is None else bias.contiguous(), out),
            (length,),
            INNER=inner, OUTER=outer, INNER_STEP=weight.stride(0), OUTER_STEP=weight.stride(1),
            HAS_BIAS=bias is not None, **tile,
        )  # fmt: skip


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    normed, slot, weight, _ = inputs
    ctx.save_for_backward(slot, normed, weight)


def _differentiate(backward: Callable[..., Any], ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    to_normed, to_weight, to_bias = backward(grad, *ctx.saved_tensors)
    return to_normed, None, to_weight, to_bias


projected = Differentiable(
    Operator("projected", _forward, _forward_shape),
    Operator("projected_backward", _backward, _backward_shapes),
    _keep,
    _differentiate,
)
"""Of normalised descriptors (batch, slots, dim), the slot of every token, as many as slots and counted without gaps
from 0 on, a weight (angles, dim) and a bias, all in float32: angles (batch, slots, angles), zero where no unit is."""
