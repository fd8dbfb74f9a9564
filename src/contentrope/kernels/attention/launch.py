"""Starting the kernels: shapes, strides, and tiles chosen once for every class of shapes."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contentrope.kernels.attention import far
from contentrope.kernels.attention.backward import backward_kernel, prepare_kernel
from contentrope.kernels.attention.forward import forward_kernel
from contentrope.kernels.launch import power_of_two, programs, start
from contentrope.kernels.tuning import tuned

SHORTEST_CLASS, LONGEST_CLASS = 512, 16384
"""Lengths are tuned as powers of two between these; what is fast for one is fast for its neighbours."""
CACHE_SHARE = 3
"""Heads are read abreast as long as what they read again fills at most this part of a GPU's cache."""
MOST_ROWS = 64
"""A multiple of all tiles of the backward kernel."""
PREPARED_ROWS = 32
"""Of a program that prepares queries for it."""
INTERPRETED_CACHE = 1 << 15
"""Small, so that small examples have heads that are not read abreast."""


class Pairs(NamedTuple):
    """The pair rule as the kernels read it; None where nothing is padding, or no unit is memory."""

    start: Tensor
    left: Tensor
    until: Tensor
    spared: Tensor | None
    local_start: Tensor
    valid: Tensor | None
    memory: Tensor | None

    def flags(self) -> dict[str, bool]:
        return {
            "HAS_SPARED": self.spared is not None,
            "HAS_VALID": self.valid is not None,
            "HAS_MEMORY": self.memory is not None,
        }

    def pointers(self) -> tuple[Tensor, ...]:
        """Where there is nothing to point to, anything will do: it is never read."""
        return tuple(self.start if tensor is None else tensor for tensor in self)


def forward(
    query: Tensor,
    local_key: Tensor,
    addressed_key: Tensor,
    value: Tensor,
    pairs: Pairs,
    bonus: Tensor | None,
    scale: float,
    reach: int,
) -> tuple[Tensor, Tensor]:
    """``reach``: from how many tokens on keys are read by ``far.py``; 0: none are."""
    batch, heads, length, dim = query.shape
    out = query.new_empty(batch, length, heads, dim).transpose(1, 2)
    log_sum = query.new_empty(batch, heads, length, dtype=torch.float32)
    if not out.numel():
        return out, log_sum
    far_out, far_log_sum = query, log_sum
    if reach:
        far_out, far_log_sum = far.forward(query, addressed_key, value, reach, scale)
    start(
        tuned(forward_kernel), lambda tile: (programs(length, tile["M"]) * batch * heads,),
        (query, local_key, addressed_key, value, *pairs.pointers(), pairs.start if bonus is None else bonus,
         far_out, far_log_sum, out, log_sum),
        (*_strides(query, local_key, addressed_key, value, far_out, out),
         length, reach, _heads_abreast(query, value), scale),
        **_sizes(query, local_key, reach), **pairs.flags(), HAS_BONUS=bonus is not None,
    )  # fmt: skip
    return out, log_sum


def backward(
    grad: Tensor,
    query: Tensor,
    local_key: Tensor,
    addressed_key: Tensor,
    value: Tensor,
    out: Tensor,
    log_sum: Tensor,
    pairs: Pairs,
    bonus: Tensor | None,
    scale: float,
    reach: int,
    value_grad: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, local key, addressed key, value and bonus (empty where there is none). That of the values is
    written into ``value_grad``, if it is given."""
    batch, heads, length, dim = query.shape
    kv_heads = local_key.shape[1]
    query_grad = query.new_empty(batch, length, heads, dim).transpose(1, 2)
    local_grad, addressed_grad = (query.new_empty(batch, length, kv_heads, dim).transpose(1, 2) for _ in range(2))
    if value_grad is None:
        value_grad = query.new_empty(batch, length, kv_heads, dim).transpose(1, 2)
    bonus_grad = torch.empty_like(log_sum if bonus is not None else log_sum[:0])
    if not query.numel():
        return query_grad, local_grad, addressed_grad, value_grad, bonus_grad
    rows = programs(length, MOST_ROWS) * MOST_ROWS
    sums, delta = (log_sum.new_empty(batch, heads, rows) for _ in range(2))
    sizes = _sizes(query, local_key, reach)
    beyond = far.FarGradients(query, local_key, value)  # never read where nothing is beyond reach
    if reach:
        beyond = far.backward(grad, query, addressed_key, value, out, log_sum, reach, scale)
    start(
        prepare_kernel, (rows // PREPARED_ROWS * batch * heads,),
        (grad, out, log_sum, sums, delta), (*_strides(grad, out), length, rows),
        HEADS=heads, DIM=dim, WIDTH=sizes["WIDTH"], ROWS=PREPARED_ROWS,
    )  # fmt: skip
    given = query, local_key, addressed_key, value, grad
    facts = *pairs.pointers(), pairs.start if bonus is None else bonus, sums, delta
    lanes = batch * (kv_heads + heads)
    start(
        tuned(backward_kernel), lambda tile: (programs(length, tile["ROWS"]) * lanes,),
        (*given, *facts, *beyond, query_grad, bonus_grad, local_grad, addressed_grad, value_grad),
        (*_strides(*given, *beyond, query_grad, addressed_grad, value_grad),
         length, rows, reach, _heads_abreast(value, query), scale),
        **sizes, **pairs.flags(), HAS_BONUS=bonus is not None,
    )  # fmt: skip
    return query_grad, local_grad, addressed_grad, value_grad, bonus_grad


def _sizes(query: Tensor, key: Tensor, reach: int) -> dict[str, Any]:
    heads, dim = query.shape[1], query.shape[-1]
    exact = query.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    return {
        "HEADS": heads,
        "GROUP": heads // key.shape[1],
        "DIM": dim,
        "WIDTH": max(16, power_of_two(dim)),
        "PRECISION": "ieee" if exact else "tf32",
        "HAS_FAR": reach > 0,
        "LENGTH_CLASS": _length_class(query.shape[2]),
    }


def _heads_abreast(written: Tensor, read: Tensor) -> int:
    """How many heads, of those that programs write to, are gone through abreast; each tile of theirs reads two tensors
    like ``read``."""
    batch, heads, length, dim = read.shape
    fitting = _cache_bytes(read.device) // CACHE_SHARE // (2 * length * dim * read.element_size())
    sections = programs(batch * heads, max(1, fitting))
    return programs(batch * written.shape[1], sections)


@functools.cache
def _cache_bytes(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else INTERPRETED_CACHE


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(stride for tensor in tensors for stride in tensor.stride()[:3])


def _length_class(length: int) -> int:
    return min(max(power_of_two(length), SHORTEST_CLASS), LONGEST_CLASS)
