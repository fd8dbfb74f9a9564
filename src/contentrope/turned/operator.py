"""The kernels as operators of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from contentrope.launching import power_of_two, programs, start
from contentrope.operators import Differentiable, Operator, dimensions_together, standing_for_all
from contentrope.turned.kernels import backward_kernel, forward_kernel

PAIRS_AT_ONCE = 1024
"""Of a program; with four warps, eight a thread."""


def _forward(
    query: Tensor,
    key: Tensor,
    angles: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    address_cos: Tensor,
    address_sin: Tensor,
    slot: Tensor,
    closes: Tensor,
    interleaved: bool,
    with_local: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    turned, local, addressed = _forward_shapes(query, key, with_local)
    if query.numel():
        query, key = dimensions_together(query), dimensions_together(key)
        cos, sin, strides = standing_for_all(cos, sin, (*key.shape[:3], cos.shape[3]))
        sizes = _sizes(query, key, cos, interleaved, with_local)
        start(
            forward_kernel, _grid(query, key, sizes),
            (query, key, cos, sin, address_cos.contiguous(), address_sin.contiguous(),
             slot.contiguous(), closes.contiguous(), turned, local, addressed),
            (*query.stride()[:3], *key.stride()[:3], *strides, query.shape[1], address_cos.shape[1]), **sizes,
        )  # fmt: skip
    return turned, local, addressed


def _forward_shapes(query: Tensor, key: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    local = key.new_empty(key.shape if rest[-1] else (0,))
    return query.new_empty(query.shape), local, key.new_empty(key.shape)


def _backward(
    turned_grad: Tensor,
    local_grad: Tensor,
    addressed_grad: Tensor,
    turned: Tensor,
    addressed: Tensor,
    cos: Tensor,
    sin: Tensor,
    address_cos: Tensor,
    address_sin: Tensor,
    slot: Tensor,
    closes: Tensor,
    interleaved: bool,
    with_local: bool,
    to_angles: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys, and the angles of each token's unit (empty, if they are not asked for)."""
    query_grad, key_grad, angle_grad = _gradients(turned, addressed, cos, to_angles)
    if turned.numel():
        local_grad = local_grad if with_local else addressed_grad  # never read then
        grads = [dimensions_together(grad) for grad in (turned_grad, local_grad, addressed_grad)]
        cos, sin, strides = standing_for_all(cos, sin, (*addressed.shape[:3], cos.shape[3]))
        sizes = _sizes(turned, addressed, cos, interleaved, with_local)
        start(
            backward_kernel, _grid(turned, addressed, sizes),
            (*grads, turned, addressed, cos, sin, address_cos.contiguous(), address_sin.contiguous(),
             slot.contiguous(), closes.contiguous(), query_grad, key_grad, angle_grad),
            (*(stride for grad in grads for stride in grad.stride()[:3]), *strides,
             turned.shape[1], address_cos.shape[1]), **sizes, TO_ANGLES=to_angles,
        )  # fmt: skip
    return query_grad, key_grad, angle_grad


def _backward_shapes(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _gradients(given[3], given[4], given[5], given[-1])


def _gradients(turned: Tensor, addressed: Tensor, cos: Tensor, to_angles: bool) -> tuple[Tensor, Tensor, Tensor]:
    batch, length, kv_heads, _ = addressed.shape
    shape = (batch if to_angles else 0, length, kv_heads, cos.shape[-1])
    return turned.new_empty(turned.shape), addressed.new_empty(addressed.shape), cos.new_empty(shape)


def _sizes(query: Tensor, key: Tensor, cos: Tensor, interleaved: bool, with_local: bool) -> dict[str, Any]:
    dim, pairs = query.shape[3], cos.shape[3]
    width, rest = power_of_two(pairs), dim - 2 * pairs
    return {
        "HEADS": query.shape[2],
        "KV_HEADS": key.shape[2],
        "DIM": dim,
        "PAIRS": pairs,
        "WIDTH": width,
        "REST": rest,
        "REST_WIDTH": power_of_two(max(rest, 1)),
        "INTERLEAVED": interleaved,
        "LOCAL": with_local,
        "ROWS": max(1, PAIRS_AT_ONCE // width),
    }


def _grid(query: Tensor, key: Tensor, sizes: dict[str, Any]) -> tuple[int, int, int]:
    batch, length, heads, _ = query.shape
    return programs(length * max(heads, key.shape[2]), sizes["ROWS"]), batch, 2


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    _, _, _, *facts, interleaved, with_local = inputs
    ctx.settings = interleaved, with_local
    turned, _, addressed = output
    ctx.save_for_backward(turned, addressed, *facts)


def _differentiate(backward: Callable[..., Any], ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    to_angles = ctx.needs_input_grad[2]
    to_query, to_key, by_token = backward(*grads, *ctx.saved_tensors, *ctx.settings, to_angles)
    return to_query, to_key, by_token if to_angles else None, *(None for _ in range(8))


turned_states = Differentiable(
    Operator("turned_states", _forward, _forward_shapes),
    Operator("turned_states_backward", _backward, _backward_shapes),
    _keep,
    _differentiate,
)
"""Queries, local keys (empty, if they are not asked for) and addressed keys; :class:`contentrope.turned.Turns` says
what is given."""
