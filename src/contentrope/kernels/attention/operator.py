"""The kernels as operators of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from contentrope.kernels.attention import launch
from contentrope.kernels.attention.far import reach_of
from contentrope.kernels.attention.launch import Pairs
from contentrope.kernels.ops import Differentiable, Operator, dimensions_together


def _forward(
    query: Tensor,
    local_key: Tensor,
    addressed_key: Tensor,
    value: Tensor,
    start: Tensor,
    left: Tensor,
    until: Tensor,
    spared: Tensor | None,
    local_start: Tensor,
    valid: Tensor | None,
    memory: Tensor | None,
    bonus: Tensor | None,
    scale: float,
    longest_unit: int | None,
) -> tuple[Tensor, Tensor]:
    pairs = Pairs(start, left, until, spared, local_start, valid, memory)
    query, local_key, addressed_key, value = map(dimensions_together, (query, local_key, addressed_key, value))
    # Here, where a compiler does not look: it depends on the device, and a traced length would be guarded.
    reach = reach_of(query, longest_unit)
    return launch.forward(query, local_key, addressed_key, value, pairs, bonus, scale, reach)


def _forward_shapes(query: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    batch, heads, length, dim = query.shape
    out = query.new_empty(batch, length, heads, dim).transpose(1, 2)
    return out, query.new_empty(batch, heads, length, dtype=torch.float32)


def _backward(
    grad: Tensor,
    query: Tensor,
    local_key: Tensor,
    addressed_key: Tensor,
    value: Tensor,
    out: Tensor,
    log_sum: Tensor,
    start: Tensor,
    left: Tensor,
    until: Tensor,
    spared: Tensor | None,
    local_start: Tensor,
    valid: Tensor | None,
    memory: Tensor | None,
    bonus: Tensor | None,
    scale: float,
    longest_unit: int | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    pairs = Pairs(start, left, until, spared, local_start, valid, memory)
    grad, query, local_key, addressed_key, value = map(
        dimensions_together, (grad, query, local_key, addressed_key, value)
    )
    reach = reach_of(query, longest_unit)
    return launch.backward(grad, query, local_key, addressed_key, value, out, log_sum, pairs, bonus, scale, reach)


def _backward_shapes(
    grad: Tensor, query: Tensor, local_key: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch, heads, length, dim = query.shape
    query_grad = query.new_empty(batch, length, heads, dim).transpose(1, 2)
    keys = [query.new_empty(batch, length, local_key.shape[1], dim).transpose(1, 2) for _ in range(3)]
    has_bonus = rest[-3] is not None
    return (
        query_grad,
        keys[0],
        keys[1],
        keys[2],
        query.new_empty(batch if has_bonus else 0, heads, length, dtype=torch.float32),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)  # nobody differentiates the logarithms
    *tensors, scale, longest_unit = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.scale, ctx.longest_unit = scale, longest_unit


def _differentiate(backward: Callable[..., Any], ctx: Any, grad: Tensor, _: None) -> tuple[Tensor | None, ...]:
    query, local_key, addressed_key, value, *facts, bonus, out, log_sum = ctx.saved_tensors
    given = grad, query, local_key, addressed_key, value, out, log_sum, *facts, bonus
    grads = backward(*given, ctx.scale, ctx.longest_unit)
    to_bonus = grads[4] if bonus is not None else None
    return *grads[:4], *(None for _ in facts), to_bonus, None, None


attention = Differentiable(
    Operator("fused_attention", _forward, _forward_shapes),
    Operator("fused_attention_backward", _backward, _backward_shapes),
    _keep,
    _differentiate,
)
"""The output, and for the backward pass the logarithm of each query's sum of weights."""
