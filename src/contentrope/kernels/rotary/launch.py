"""Starting the kernels: shapes, strides and sizes."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from contentrope.kernels.launch import power_of_two, programs, start
from contentrope.kernels.ops import dimensions_together, standing_for_all
from contentrope.kernels.rotary.kernels import backward_kernel, forward_kernel

PAIRS_AT_ONCE = 1024
"""Of a program; with four warps, eight a thread."""


class Facts(NamedTuple):
    """How the tokens of a call are turned: see :class:`contentrope.kernels.rotary.Turns`."""

    cos: Tensor
    sin: Tensor
    address_cos: Tensor
    address_sin: Tensor
    slot: Tensor
    closes: Tensor
    interleaved: bool
    with_local: bool
    """Whether local keys are asked for."""

    def pointers(self) -> tuple[Tensor, ...]:
        """Those that do not stand for others."""
        return tuple(x.contiguous() for x in (self.address_cos, self.address_sin, self.slot, self.closes))


def forward(query: Tensor, key: Tensor, facts: Facts) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, local keys (empty, if they are not asked for), addressed keys."""
    states = states_for(query, key, facts.with_local)
    if query.numel():
        query, key = dimensions_together(query), dimensions_together(key)
        cos, sin, strides = standing_for_all(facts.cos, facts.sin, (*key.shape[:3], facts.cos.shape[3]))
        sizes = _sizes(query, key, facts)
        start(
            forward_kernel, _grid(query, key, sizes),
            (query, key, cos, sin, *facts.pointers(), *states),
            (*query.stride()[:3], *key.stride()[:3], *strides, query.shape[1], facts.address_cos.shape[1]), **sizes,
        )  # fmt: skip
    return states


def states_for(query: Tensor, key: Tensor, with_local: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Room for what :func:`forward` gives."""
    local = key.new_empty(key.shape if with_local else (0,))
    return query.new_empty(query.shape), local, key.new_empty(key.shape)


def backward(
    grads: tuple[Tensor, Tensor, Tensor],
    turned: Tensor,
    addressed: Tensor,
    facts: Facts,
    to: tuple[Tensor, Tensor, Tensor],
) -> None:
    """From the gradients of what :func:`forward` gave, those of queries, keys and angles, written into ``to``. Rows,
    tokens and heads of queries and keys may lie there as they like; empty angles are not asked for."""
    if not turned.numel():
        return
    turned_grad, local_grad, addressed_grad = grads
    local_grad = local_grad if facts.with_local else addressed_grad  # never read then
    given = [dimensions_together(grad) for grad in (turned_grad, local_grad, addressed_grad)]
    cos, sin, strides = standing_for_all(facts.cos, facts.sin, (*addressed.shape[:3], facts.cos.shape[3]))
    sizes = _sizes(turned, addressed, facts)
    start(
        backward_kernel, _grid(turned, addressed, sizes),
        (*given, turned, addressed, cos, sin, *facts.pointers(), *to),
        (*(stride for x in (*given, *to[:2]) for stride in x.stride()[:3]), *strides,
         turned.shape[1], facts.address_cos.shape[1]), **sizes, TO_ANGLES=bool(to[2].numel()),
    )  # fmt: skip


def angles_for(addressed: Tensor, cos: Tensor, to_angles: bool) -> Tensor:
    """Room for the gradient of the angles of each token's unit; empty, if it is not asked for."""
    batch, length, kv_heads, _ = addressed.shape
    return cos.new_empty(batch if to_angles else 0, length, kv_heads, cos.shape[-1])


def _sizes(query: Tensor, key: Tensor, facts: Facts) -> dict[str, Any]:
    dim, pairs = query.shape[3], facts.cos.shape[3]
    width, rest = power_of_two(pairs), dim - 2 * pairs
    return {
        "HEADS": query.shape[2],
        "KV_HEADS": key.shape[2],
        "DIM": dim,
        "PAIRS": pairs,
        "WIDTH": width,
        "REST": rest,
        "REST_WIDTH": power_of_two(max(rest, 1)),
        "INTERLEAVED": facts.interleaved,
        "LOCAL": facts.with_local,
        "ROWS": max(1, PAIRS_AT_ONCE // width),
    }


def _grid(query: Tensor, key: Tensor, sizes: dict[str, Any]) -> tuple[int, int, int]:
    batch, length, heads, _ = query.shape
    return programs(length * max(heads, key.shape[2]), sizes["ROWS"]), batch, 2
