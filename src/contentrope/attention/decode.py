"""Attention of a single token over a cache that holds every key in one version.

Under a near window a token has two queries. The *far* one reads keys left of ``begin``, which stand rotated to their
addresses, and keys of memory units wherever they stand; the *near* one reads all others. One softmax counts both.

On a GPU one kernel reads the cache once (``contentrope.kernels.attention.decode``). Elsewhere the two ranges of columns
are read apart, each with its logsumexp, which then tells how much of the softmax belongs to each.

Shapes: batch, heads, kv_heads, group (query heads of one key head), columns (of the cache so far, the token's last).
"""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from contentrope.attention.pairs import Keys
from contentrope.config import PairLayout
from contentrope.rotary import Rotation, at_least_float32

Query = Float[Tensor, "batch heads 1 head_dim"]
HAS_TRITON = importlib.util.find_spec("triton") is not None
KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LARGEST_HEAD = 256
"""That the kernel reads."""
LIBRARY = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
"""What torch's attention calls on a CPU. It tells the logsumexp, though 0 where all is hidden."""


class Part(NamedTuple):
    """What one query found in its range of columns."""

    out: Float[Tensor, "batch kv_heads group head_dim"]
    lse: Float[Tensor, "batch kv_heads group"]
    """Finite where nothing was seen too, but below all others; ``out`` is zero there."""


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
) -> Query:
    """What the token reads; zeros in a row where all is hidden.

    ``begin`` is the first near column of each row. ``taken`` is subtracted from the scores of keys that are read far.
    ``key_memory`` are keys read far wherever they stand: of memory units, but for the token's own. ``begin_bounds``
    are the least and the largest ``begin``, where the host knows them. Without a window both queries are the same.
    """
    if reads_by_kernel(query, far_query, key, value, taken):
        from contentrope.kernels.attention.decode import attend_one as by_kernel  # triton is needed only here

        return by_kernel(query, far_query, key, value, begin, taken, key_memory, hidden, scale)
    columns = key.shape[2]
    least, largest = _bounds(begin, columns) if begin_bounds is None else begin_bounds
    far_end = largest if key_memory is None else columns
    far_hidden = near_hidden = hidden
    if least < far_end:  # else a column's place tells which query reads it
        near = torch.arange(columns, device=begin.device) >= begin
        near = near if key_memory is None else near & ~key_memory
        far_hidden, near_hidden = (x if hidden is None else x | hidden for x in (near, ~near))
    near_part = far_part = None
    if least < columns:
        near_part = _read(query, key, value, near_hidden, least, columns, scale)
    if far_end > 0:
        far_part = _read(far_query, key, value, far_hidden, 0, far_end, scale)
    return _merged(near_part, far_part, taken).reshape(query.shape).to(query.dtype)


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


def _bounds(begin: Int[Tensor, "batch 1"], columns: int) -> tuple[int, int]:
    """The least and the largest, or what is sure without asking: a GPU would be waited for, a compiler cannot."""
    if torch.compiler.is_compiling() or begin.device.type != "cpu" or not begin.numel():
        return 0, columns
    return int(begin.min()), int(begin.max())


def _read(
    query: Query,
    key: Keys,
    value: Keys,
    hidden: Bool[Tensor, "batch columns"] | None,
    first: int,
    beyond: int,
    scale: float,
) -> Part:
    """Of the columns from ``first`` to before ``beyond``."""
    rows = query.view(len(query), key.shape[1], -1, query.shape[-1])
    # Few calls, as a short cache is read in the time of a hundred; `narrow` takes half of what slicing does.
    key, value = key.narrow(2, first, beyond - first), value.narrow(2, first, beyond - first)
    hidden = None if hidden is None else hidden.narrow(1, first, beyond - first)
    by_library = query.device.type == "cpu" and not _needs_gradient(query, key, value)
    out, lse = (_by_library if by_library else _written_out)(rows, key, value, hidden, scale)
    if hidden is None:
        return Part(out, lse)
    sees_nothing = hidden.all(1)[:, None, None]
    # Finite, so that of two parts which saw nothing the difference is a number.
    lse = lse.masked_fill(sees_nothing, torch.finfo(lse.dtype).min / 4)
    return Part(out.masked_fill(sees_nothing[..., None], 0.0), lse)


def _by_library(
    rows: Float[Tensor, "batch kv_heads group head_dim"], key: Keys, value: Keys, hidden: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Query heads that share keys are the queries of one head, so that keys are read once for all of them."""
    mask = None
    if hidden is not None:
        mask = torch.zeros(hidden.shape, dtype=rows.dtype, device=rows.device)
        mask = mask.masked_fill_(hidden, -torch.inf)[:, None, None]
    return LIBRARY(rows, key, value, attn_mask=mask, scale=scale)


def _written_out(
    rows: Float[Tensor, "batch kv_heads group head_dim"], key: Keys, value: Keys, hidden: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """The same for any device, with gradients."""
    wide = at_least_float32(rows.dtype)
    scores = scale * rows.to(wide) @ key.to(wide).transpose(-1, -2)
    if hidden is not None:
        # Where all is hidden nothing is: softmax over nothing is 0/0.
        scores = scores.masked_fill((hidden & ~hidden.all(1, keepdim=True))[:, None, None], -torch.inf)
    return scores.softmax(-1) @ value.to(wide), scores.logsumexp(-1)


def _merged(near: Part | None, far: Part | None, taken: Float[Tensor, "rows taken_heads 1"] | None) -> Tensor:
    if near is None or far is None:
        part = near or far
        assert part is not None, "a column is left of begin, or it is not"
        return part.out
    ahead = near.lse - far.lse
    if taken is not None:
        ahead = ahead + _grouped(taken, *ahead.shape[1:])
    share = ahead.sigmoid().unsqueeze(-1)
    return torch.lerp(far.out.to(share.dtype), near.out.to(share.dtype), share)


def _grouped(taken: Float[Tensor, "rows taken_heads 1"], kv_heads: int, group: int) -> Tensor:
    """By key head and member of its group, where it differs between heads."""
    return taken if taken.shape[1] == 1 else taken[:, :, 0].unflatten(1, (kv_heads, group))
