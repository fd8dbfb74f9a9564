"""Attention of a single token over a cache that holds every key in one version.

Under a near window a token has two queries. The *far* one reads keys left of ``begin``, which stand rotated to their
addresses, and keys of memory units wherever they stand; the *near* one reads all others. One softmax counts both.

On a GPU one kernel reads the cache once (``contentrope.kernels.attention.decode``). On a CPU the library reads it once,
by the far query: what the near one makes of near keys is added to their scores as a bias. Both queries are as long, so
this rounds as a product of either does.

Shapes: batch, heads, kv_heads, group (query heads of one key head), columns (of the cache so far, the token's last),
near (those of them that are near in some row).
"""

from __future__ import annotations

import importlib.util
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from contentrope.attention.pairs import Keys
from contentrope.config import PairLayout
from contentrope.rotary import Rotation, at_least_float32

Query = Float[Tensor, "batch heads 1 head_dim"]
Rows = Float[Tensor, "batch kv_heads group head_dim"]
"""Query heads that share keys as the queries of one head, so that keys are read once for all of them."""
HAS_TRITON = importlib.util.find_spec("triton") is not None
KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LARGEST_HEAD = 256
"""That the kernel reads."""
LIBRARY = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
"""What torch's attention calls on a CPU. It takes biases of float32 beside halves."""


class Plan(NamedTuple):
    """Who reads which columns; the same in all layers."""

    seen: Float[Tensor, "batch 1 1 columns"] | None
    """0, and -inf where a column is hidden; None: all are seen."""
    sees_nothing: Bool[Tensor, "batch 1 1 1"] | None
    first: int
    """Near columns begin here, in some row."""
    is_near: Float[Tensor, "batch 1 1 near"] | None
    """1, and 0 where a column is far in a row; None: all of them are near."""
    bias: Float[Tensor, "batch kv_heads group columns"] | None
    """Added to the scores of the far query. None: nothing is far."""
    near: Float[Tensor, "batch_kv_heads group near"] | None
    """Of the bias the near columns, which are written anew in every layer."""


def attend_one(
    query: Query,
    far_query: Query,
    key: Keys,
    value: Keys,
    begin: Int[Tensor, "batch 1"],
    *,
    taken: Float[Tensor, "rows taken_heads 1"] | None = None,
    key_memory: Bool[Tensor, "batch columns"] | None = None,
    hidden: Bool[Tensor, "batch columns"] | None = None,
    scale: float,
    begin_bounds: tuple[int, int] | None = None,
    memo: dict[Any, Any] | None = None,
) -> Query:
    """What the token reads; zeros in a row where all is hidden.

    ``begin`` is the first near column of each row. ``taken`` is subtracted from the scores of keys that are read far.
    ``key_memory`` are keys read far wherever they stand: of memory units, but for the token's own. ``begin_bounds``
    are the least and the largest ``begin``, where the host knows them. ``memo`` keeps what is derived from
    all these for the other layers. Without a window both queries are the same.
    """
    if reads_by_kernel(query, far_query, key, value, taken):
        from contentrope.kernels.attention.decode import attend_one as by_kernel  # triton is needed only here

        return by_kernel(query, far_query, key, value, begin, taken, key_memory, hidden, scale)
    rows, far_rows, grouped = query, far_query, query.shape[1] != key.shape[1]
    if grouped:
        rows, far_rows = (x.view(len(x), key.shape[1], -1, x.shape[-1]) for x in (query, far_query))
    asked = torch.compiler.is_compiling() or _needs_gradient(query, far_query, key, value, taken)
    if query.device.type != "cpu" or asked:
        out = _written_out(rows, far_rows, key, value, begin, taken, key_memory, hidden, scale)
        return out.reshape(query.shape).to(query.dtype)
    plan = None if memo is None else memo.get(Plan)
    if plan is None:
        plan = _plan(rows, begin, key.shape[2], begin_bounds, key_memory, hidden)
        if memo is not None:
            memo[Plan] = plan
    if plan.bias is None:
        out, _ = LIBRARY(rows, key, value, attn_mask=plan.seen, scale=scale)
    else:
        _put_near(plan, rows, far_rows, key, taken, scale)
        out, _ = LIBRARY(far_rows, key, value, attn_mask=plan.bias, scale=scale)
    if plan.sees_nothing is not None:
        out = out.masked_fill(plan.sees_nothing, 0.0)
    return out.view(query.shape) if grouped else out


def attend_next(
    qkv: Float[Tensor, "batch 1 all_heads head_dim"],
    near: Rotation,
    far: Rotation,
    key: Keys,
    value: Keys,
    begin: Int[Tensor, "batch 1"],
    *,
    taken: Float[Tensor, "rows taken_heads 1"] | None = None,
    key_memory: Bool[Tensor, "batch columns"] | None = None,
    hidden: Bool[Tensor, "batch columns"] | None = None,
    scale: float,
    layout: PairLayout,
) -> Query:
    """:func:`attend_one` of a token that is not rotated and not in the cache yet: both are done here, in one kernel.

    ``qkv`` are its queries, its key and its value side by side, as one projection gave them; the last column of ``key``
    and ``value`` is written. ``near`` rotates near queries and the key, ``far`` far queries. To be called only where
    :func:`reads_next_by_kernel` says so.
    """
    from contentrope.kernels.attention.decode import attend_next as by_kernel  # triton is needed only here

    return by_kernel(qkv, near, far, key, value, begin, taken, key_memory, hidden, scale, layout == "interleaved")


def reads_next_by_kernel(qkv: Tensor, near: Rotation, kv_heads: int) -> bool:
    """Whether one kernel rotates a token, appends it and reads the cache: as :func:`reads_by_kernel`, where heads that
    share a key share its rotation, and nobody watches operators."""
    if torch.compiler.is_compiling() or near.cos.dtype != torch.float32 or near.cos.shape[2] not in (1, kv_heads):
        return False
    return type(qkv) is Tensor and reads_by_kernel(qkv)


def reads_by_kernel(query: Tensor, *others: Tensor | None) -> bool:
    """A rule, not a fallback: CUDA tensors of a dtype and head size the kernel has, of which no gradient is asked."""
    if not (query.is_cuda and HAS_TRITON and query.dtype in KERNEL_DTYPES and query.shape[-1] <= LARGEST_HEAD):
        return False
    return not _needs_gradient(query, *others)


def _needs_gradient(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def _plan(
    rows: Rows,
    begin: Int[Tensor, "batch 1"],
    columns: int,
    bounds: tuple[int, int] | None,
    key_memory: Bool[Tensor, "batch columns"] | None,
    hidden: Bool[Tensor, "batch columns"] | None,
) -> Plan:
    wide = at_least_float32(rows.dtype)
    seen = sees_nothing = is_near = bias = of_near = None
    if hidden is not None:
        sees_nothing = hidden.all(1, keepdim=True)
        # Where all is hidden nothing is: softmax over nothing is 0/0.
        seen = torch.zeros(hidden.shape, dtype=wide).masked_fill_(hidden & ~sees_nothing, -torch.inf)[:, None, None]
        sees_nothing = sees_nothing[:, None, None]
    first, last = bounds or ((int(begin.min()), int(begin.max())) if len(begin) else (0, 0))
    if last or key_memory is not None:
        bias = torch.zeros(*rows.shape[:3], columns, dtype=wide)
        bias = bias if seen is None else bias.add_(seen)
        of_near = bias.flatten(0, 1).narrow(2, first, columns - first)
    if first < last or key_memory is not None:
        near = torch.arange(first, columns) >= begin
        near = near if key_memory is None else near & ~key_memory.narrow(1, first, columns - first)
        is_near = near[:, None, None].to(wide)
    return Plan(seen, sees_nothing, first, is_near, bias, of_near)


def _put_near(
    plan: Plan, rows: Rows, far_rows: Rows, key: Keys, taken: Float[Tensor, "rows taken_heads 1"] | None, scale: float
) -> None:
    """Into the bias: how far the near query's scores of near keys are above those of the far one, which competition
    takes from."""
    near, first = plan.near, plan.first
    assert near is not None
    count = near.shape[2]
    ahead = (rows.to(near.dtype) - far_rows.to(near.dtype)).flatten(0, 1)
    near_key = key.narrow(2, first, count).to(near.dtype).flatten(0, 1).mT
    # Written in place, so few keys are not shared out to threads that would have to be woken.
    if taken is None:
        torch.baddbmm(near, ahead, near_key, beta=0, alpha=scale, out=near)
    else:
        taken = taken if taken.numel() == 1 else _grouped(taken, rows).flatten(0, 1)
        torch.baddbmm(taken.to(near.dtype), ahead, near_key, alpha=scale, out=near)
    if plan.is_near is not None:
        near.unflatten(0, rows.shape[:2]).mul_(plan.is_near)
    if plan.seen is not None:
        near.unflatten(0, rows.shape[:2]).add_(plan.seen.narrow(3, first, count))


def _grouped(taken: Float[Tensor, "rows taken_heads 1"], rows: Rows) -> Float[Tensor, "batch kv_heads group 1"]:
    """By row, key head and member of its group."""
    batch, kv_heads, group, _ = rows.shape
    return taken.expand(batch, kv_heads * group, 1).unflatten(1, (kv_heads, group))


def _written_out(
    rows: Rows,
    far_rows: Rows,
    key: Keys,
    value: Keys,
    begin: Int[Tensor, "batch 1"],
    taken: Float[Tensor, "rows taken_heads 1"] | None,
    key_memory: Bool[Tensor, "batch columns"] | None,
    hidden: Bool[Tensor, "batch columns"] | None,
    scale: float,
) -> Rows:
    """The same for any device, with gradients."""
    wide = at_least_float32(rows.dtype)
    near, far = (scale * x.to(wide) @ key.to(wide).mT for x in (rows, far_rows))
    if taken is not None:
        far = far - _grouped(taken, rows)
    is_near = torch.arange(key.shape[2], device=begin.device) >= begin
    is_near = is_near if key_memory is None else is_near & ~key_memory
    scores = torch.where(is_near[:, None, None], near, far)
    if hidden is None:
        return scores.softmax(-1) @ value.to(wide)
    # Where all is hidden nothing is: softmax over nothing is 0/0.
    sees_nothing = hidden.all(1, keepdim=True)
    scores = scores.masked_fill((hidden & ~sees_nothing)[:, None, None], -torch.inf)
    return (scores.softmax(-1) @ value.to(wide)).masked_fill(sees_nothing[:, None, None], 0.0)
