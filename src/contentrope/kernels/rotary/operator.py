"""The kernels as operators of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from contentrope.kernels.ops import Differentiable, Operator
from contentrope.kernels.rotary import launch
from contentrope.kernels.rotary.launch import Facts


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
    facts = Facts(cos, sin, address_cos, address_sin, slot, closes, interleaved, with_local)
    return launch.forward(query, key, facts)


def _forward_shapes(query: Tensor, key: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return launch.states_for(query, key, rest[-1])


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
    to = _gradients(turned, addressed, cos, to_angles)
    facts = Facts(cos, sin, address_cos, address_sin, slot, closes, interleaved, with_local)
    launch.backward((turned_grad, local_grad, addressed_grad), turned, addressed, facts, to)
    return to


def _backward_shapes(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _gradients(given[3], given[4], given[5], given[-1])


def _gradients(turned: Tensor, addressed: Tensor, cos: Tensor, to_angles: bool) -> tuple[Tensor, Tensor, Tensor]:
    queries, keys = turned.new_empty(turned.shape), addressed.new_empty(addressed.shape)
    return queries, keys, launch.angles_for(addressed, cos, to_angles)


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
"""Queries, local keys (empty, if they are not asked for) and addressed keys;
:class:`contentrope.kernels.rotary.Turns` says what is given."""
