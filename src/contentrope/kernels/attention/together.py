"""Turning and reading as one operator, for queries, keys and values that lie side by side: so does their gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from contentrope.kernels.attention import launch
from contentrope.kernels.attention.far import reach_of
from contentrope.kernels.attention.launch import Pairs
from contentrope.kernels.ops import Differentiable, Operator, dimensions_together
from contentrope.kernels.rotary import launch as turning

WITH_LOCAL = True


def _parts(together: Tensor, kv_heads: int) -> tuple[Tensor, ...]:
    """Queries, keys, values."""
    return together.split((together.shape[2] - 2 * kv_heads, kv_heads, kv_heads), dim=2)


def _forward(
    together: Tensor,
    angles: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    address_cos: Tensor,
    address_sin: Tensor,
    slot: Tensor,
    closes: Tensor,
    start: Tensor,
    left: Tensor,
    until: Tensor,
    spared: Tensor | None,
    local_start: Tensor,
    valid: Tensor | None,
    memory: Tensor | None,
    bonus: Tensor | None,
    kv_heads: int,
    interleaved: bool,
    scale: float,
    longest_unit: int | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    query, key, value = _parts(dimensions_together(together), kv_heads)
    facts = turning.Facts(cos, sin, address_cos, address_sin, slot, closes, interleaved, WITH_LOCAL)
    states = turning.forward(query, key, facts)
    turned, local, addressed, value = (x.transpose(1, 2) for x in (*states, value))
    pairs = Pairs(start, left, until, spared, local_start, valid, memory)
    reach = reach_of(turned, longest_unit)
    out, log_sum = launch.forward(turned, local, addressed, value, pairs, bonus, scale, reach)
    return out, log_sum, *states


def _forward_shapes(together: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    query, key, _ = _parts(together, rest[-4])
    batch, length, heads, _ = query.shape
    out = query.new_empty(query.shape).transpose(1, 2)
    log_sum = query.new_empty(batch, heads, length, dtype=torch.float32)
    return out, log_sum, *turning.states_for(query, key, WITH_LOCAL)


def _backward(
    grad: Tensor,
    together: Tensor,
    cos: Tensor,
    sin: Tensor,
    address_cos: Tensor,
    address_sin: Tensor,
    slot: Tensor,
    closes: Tensor,
    start: Tensor,
    left: Tensor,
    until: Tensor,
    spared: Tensor | None,
    local_start: Tensor,
    valid: Tensor | None,
    memory: Tensor | None,
    bonus: Tensor | None,
    out: Tensor,
    log_sum: Tensor,
    turned: Tensor,
    local: Tensor,
    addressed: Tensor,
    kv_heads: int,
    interleaved: bool,
    scale: float,
    longest_unit: int | None,
    to_angles: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of what lies together, of the angles, and of the bonus (both empty where they are not asked for)."""
    together_grad = together.new_empty(together.shape)
    angle_grad = turning.angles_for(addressed, cos, to_angles)
    query_grad, key_grad, value_grad = _parts(together_grad, kv_heads)
    value = _parts(dimensions_together(together), kv_heads)[2]
    reading, local_keys, addressed_keys, values = (x.transpose(1, 2) for x in (turned, local, addressed, value))
    pairs = Pairs(start, left, until, spared, local_start, valid, memory)
    to_turned, to_local, to_addressed, _, bonus_grad = launch.backward(
        dimensions_together(grad), reading, local_keys, addressed_keys, values, out, log_sum, pairs, bonus, scale,
        reach_of(reading, longest_unit), value_grad.transpose(1, 2),
    )  # fmt: skip
    facts = turning.Facts(cos, sin, address_cos, address_sin, slot, closes, interleaved, WITH_LOCAL)
    to_states = to_turned.transpose(1, 2), to_local.transpose(1, 2), to_addressed.transpose(1, 2)
    turning.backward(to_states, turned, addressed, facts, (query_grad, key_grad, angle_grad))
    return together_grad, angle_grad, bonus_grad


def _backward_shapes(grad: Tensor, together: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    cos, bonus, log_sum, addressed, to_angles = rest[0], rest[13], rest[15], rest[18], rest[-1]
    return (
        together.new_empty(together.shape),
        turning.angles_for(addressed, cos, to_angles),
        torch.empty_like(log_sum if bonus is not None else log_sum[:0]),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)  # nobody differentiates what is kept for the backward pass
    together, _, *facts, kv_heads, interleaved, scale, longest_unit = inputs
    ctx.save_for_backward(together, *facts, *output)
    ctx.settings = kv_heads, interleaved, scale, longest_unit


def _differentiate(backward: Callable[..., Any], ctx: Any, grad: Tensor, *unused: None) -> tuple[Tensor | None, ...]:
    to_angles = ctx.needs_input_grad[1]
    together_grad, angle_grad, bonus_grad = backward(grad, *ctx.saved_tensors, *ctx.settings, to_angles)
    to_bonus = bonus_grad if ctx.needs_input_grad[15] else None
    nothing = (None for _ in range(13))
    return together_grad, angle_grad if to_angles else None, *nothing, to_bonus, None, None, None, None


attention = Differentiable(
    Operator("fused_attention_together", _forward, _forward_shapes),
    Operator("fused_attention_together_backward", _backward, _backward_shapes),
    _keep,
    _differentiate,
)
"""The output; and, for the backward pass, the logarithms of its sums, turned queries, local keys, addressed keys."""
