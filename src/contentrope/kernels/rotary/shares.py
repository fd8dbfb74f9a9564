"""What the tokens of a unit share: a gradient that reaches an address by way of its tokens is summed over them.

Layers add theirs token by token. One kernel sums what they have added, unit by unit and always in the same order, so
that the result is the same every time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from contentrope.kernels.launch import power_of_two, programs, start
from contentrope.kernels.ops import Differentiable, Operator
from contentrope.kernels.rotary.kernels import sum_kernel

TOKENS_AT_ONCE, COLUMNS_AT_ONCE = 16, 128


def _forward(angles: Tensor, slot: Tensor) -> Tensor:
    """Room for a gradient without room for numbers: nobody reads any."""
    return angles.new_empty(()).expand(*slot.shape, *angles.shape[2:])


def _backward(by_token: Tensor, slot: Tensor, slots: int) -> Tensor:
    batch, length, *shape = by_token.shape
    by_slot = by_token.new_empty(batch, slots, *shape)
    if not length:
        return by_slot.zero_()
    columns = shape[0] * shape[1]
    width = min(COLUMNS_AT_ONCE, power_of_two(columns))
    start(
        sum_kernel, (max(length, slots), programs(columns, width), batch),
        (by_token.contiguous(), slot, by_slot), (length, slots),
        COLUMNS=columns, WIDTH=width, TOKENS=TOKENS_AT_ONCE,
    )  # fmt: skip
    return by_slot


def _backward_shapes(by_token: Tensor, slot: Tensor, slots: int) -> Tensor:
    return by_token.new_empty(by_token.shape[0], slots, *by_token.shape[2:])


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    angles, slot = inputs
    ctx.save_for_backward(slot)
    ctx.slots = angles.shape[1]


def _differentiate(backward: Callable[..., Tensor], ctx: Any, by_token: Tensor) -> tuple[Tensor, None]:
    (slot,) = ctx.saved_tensors
    return backward(by_token, slot, ctx.slots), None


shared_angles = Differentiable(
    Operator("shared_angles", _forward, _forward),
    Operator("shared_angles_backward", _backward, _backward_shapes),
    _keep,
    _differentiate,
)
"""Of (batch, slots, kv_heads, pairs) angles and the slots of all tokens, int32, counted without gaps from 0 on: (batch,
seq, kv_heads, pairs), to which a gradient can be given, and which has no numbers."""
