"""The descriptor's kernels as operators of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from contentrope.kernels.address.kernels import backward_kernel, forward_kernel
from contentrope.kernels.launch import power_of_two, start
from contentrope.kernels.ops import Differentiable, Operator, dimensions_together, standing_for_all

NUMBERS_AT_ONCE, MOST_TOKENS, WARPS = 8192, 32, 8
"""Of a unit's embeddings, when they are summed up."""


def _forward(
    embedded: Tensor,
    slot: Tensor,
    cos: Tensor,
    sin: Tensor,
    weight: Tensor,
    bias: Tensor,
    epsilon: float,
    head_dim: int,
    interleaved: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, length, dim = embedded.shape
    normed, centred = (embedded.new_empty(batch, length, dim, dtype=torch.float32) for _ in range(2))
    deviation, tokens = (embedded.new_empty(batch, length, dtype=torch.float32) for _ in range(2))
    if embedded.numel():
        embedded = dimensions_together(embedded)
        cos, sin, strides = standing_for_all(cos, sin, (batch, length, dim // head_dim, cos.shape[3]))
        start(
            forward_kernel, (length, batch),
            (embedded, slot.contiguous(), cos, sin, weight, bias, normed, centred, deviation, tokens),
            (embedded.stride(0), embedded.stride(1), *strides, length, epsilon),
            **_sizes(dim, head_dim, cos.shape[-1], interleaved), TOKENS=_tokens_at_once(dim), num_warps=WARPS,
        )  # fmt: skip
    return normed, centred, deviation, tokens


def _forward_shapes(embedded: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = [embedded.new_empty(embedded.shape, dtype=torch.float32) for _ in range(2)]
    numbers = [embedded.new_empty(embedded.shape[:2], dtype=torch.float32) for _ in range(2)]
    return rows[0], rows[1], numbers[0], numbers[1]


def _backward(
    grad: Tensor,
    slot: Tensor,
    cos: Tensor,
    sin: Tensor,
    weight: Tensor,
    centred: Tensor,
    deviation: Tensor,
    tokens: Tensor,
    head_dim: int,
    interleaved: bool,
    dtype: torch.dtype,
) -> Tensor:
    batch, length, dim = grad.shape
    embedded_grad = grad.new_empty(batch, length, dim, dtype=dtype)
    if grad.numel():
        cos, sin, strides = standing_for_all(cos, sin, (batch, length, dim // head_dim, cos.shape[3]))
        start(
            backward_kernel, (length, batch),
            (grad.contiguous(), slot.contiguous(), cos, sin, weight, centred, deviation, tokens, embedded_grad),
            (*strides, length), **_sizes(dim, head_dim, cos.shape[-1], interleaved),
        )  # fmt: skip
    return embedded_grad


def _backward_shapes(grad: Tensor, *rest: Any) -> Tensor:
    return grad.new_empty(grad.shape, dtype=rest[-1])


def _sizes(dim: int, head_dim: int, pairs: int, interleaved: bool) -> dict[str, Any]:
    heads = dim // head_dim
    turning, still = heads * pairs, heads * (head_dim - 2 * pairs)
    return {
        "DIM": dim,
        "HEAD": head_dim,
        "PAIRS": pairs,
        "INTERLEAVED": interleaved,
        "TURNING": turning,
        "STILL": still,
        "WIDTH": power_of_two(turning),
        "STILL_WIDTH": power_of_two(max(still, 1)),
    }


def _tokens_at_once(dim: int) -> int:
    """
    >>> [_tokens_at_once(dim) for dim in (64, 768, 16384)]
    [32, 8, 1]
    """
    return min(MOST_TOKENS, max(1, NUMBERS_AT_ONCE // power_of_two(dim)))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)  # nobody differentiates what is kept for the backward pass
    embedded, slot, cos, sin, weight, bias, _, head_dim, interleaved = inputs
    _, centred, deviation, tokens = output
    ctx.save_for_backward(slot, cos, sin, weight, centred, deviation, tokens)
    ctx.settings = head_dim, interleaved, embedded.dtype, bias.dtype


def _differentiate(backward: Callable[..., Any], ctx: Any, grad: Tensor, *unused: None) -> tuple[Tensor | None, ...]:
    slot, cos, sin, weight, centred, deviation, tokens = ctx.saved_tensors
    head_dim, interleaved, dtype, bias_dtype = ctx.settings
    to_embedded = backward(grad, slot, cos, sin, weight, centred, deviation, tokens, head_dim, interleaved, dtype)
    to_weight = (grad * centred).sum((0, 1)).to(weight.dtype)
    return to_embedded, None, None, None, to_weight, grad.sum((0, 1)).to(bias_dtype), None, None, None


unit_descriptors = Differentiable(
    Operator("unit_descriptors", _forward, _forward_shapes),
    Operator("unit_descriptors_backward", _backward, _backward_shapes),
    _keep,
    _differentiate,
)
"""The normalised descriptor of every slot (batch, seq, dim) in float32; and, for the backward pass, the same
before weight and bias, the inverse deviations, and the number of tokens. Slots are non-decreasing."""
