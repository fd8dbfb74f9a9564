"""Keys beyond the reach of every unit: plain causal attention, which the libraries of a GPU do best.

Where no unit is longer than ``reach``, a key that lies ``reach`` or more to the left of a query is in an earlier unit,
so it is addressed and visible, whatever the boundaries. Queries from ``reach`` on and keys up to ``reach`` before the
end are therefore one causal attention of length - reach tokens, without a mask of ours. Its output and the logarithms
of its sums are what the kernels begin with; its gradients, taken with the output and sums of all keys, what they end
with.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

MULTIPLE = 16
"""The reach is rounded up to it, so that rows stay aligned."""
WORTH = 12
"""How many times the reach a text must be long: below, what both ways of reading have to begin with costs more."""
LARGEST_HEAD = 128
FIRST_CAPABILITY = (9, 0)
"""Of the GPU: the library's kernel was compared with ours on this one only."""


class FarGradients(NamedTuple):
    query: Float[Tensor, "batch heads far head_dim"]
    key: Float[Tensor, "batch kv_heads far head_dim"]
    value: Float[Tensor, "batch kv_heads far head_dim"]


def reach_of(query: Float[Tensor, "batch heads seq head_dim"], longest_unit: int | None) -> int:
    """From how many tokens on keys are read here; 0 where all are read by the kernels.

    >>> reach_of(torch.zeros(1, 1, 4096, 64, dtype=torch.bfloat16), longest_unit=100)
    0
    """
    if longest_unit is None or not _library_can(query):
        return 0
    reach = -(-longest_unit // MULTIPLE) * MULTIPLE
    return reach if query.shape[2] >= WORTH * reach else 0


def _library_can(query: Tensor) -> bool:
    half = query.dtype in (torch.bfloat16, torch.float16)
    if not (query.is_cuda and half and query.shape[-1] % 8 == 0 and query.shape[-1] <= LARGEST_HEAD):
        return False
    return (
        torch.backends.cuda.cudnn_sdp_enabled() and torch.cuda.get_device_capability(query.device) >= FIRST_CAPABILITY
    )


def forward(
    query: Float[Tensor, "batch heads seq head_dim"],
    key: Float[Tensor, "batch kv_heads seq head_dim"],
    value: Float[Tensor, "batch kv_heads seq head_dim"],
    reach: int,
    scale: float,
) -> tuple[Float[Tensor, "batch heads far head_dim"], Float[Tensor, "batch heads far"]]:
    """The output for the far keys alone, and the natural logarithms of their sums."""
    given = query[:, :, reach:], *(_shared(x[:, :, :-reach], query.shape[1]) for x in (key, value))
    if query.is_cuda:
        found = torch.ops.aten._scaled_dot_product_cudnn_attention(*given, None, True, 0.0, True, False, scale=scale)
    else:  # the kernels run in Triton's interpreter
        found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*given, 0.0, True, scale=scale)
    out, log_sum = found[:2]
    return out, log_sum.reshape(out.shape[:3]).contiguous()


def backward(
    grad: Float[Tensor, "batch heads seq head_dim"],
    query: Float[Tensor, "batch heads seq head_dim"],
    key: Float[Tensor, "batch kv_heads seq head_dim"],
    value: Float[Tensor, "batch kv_heads seq head_dim"],
    out: Float[Tensor, "batch heads seq head_dim"],
    log_sum: Float[Tensor, "batch heads seq"],
    reach: int,
    scale: float,
) -> FarGradients:
    """``out`` and ``log_sum``, a power of two as in the kernels, are those of all keys."""
    heads, kv_heads = query.shape[1], key.shape[1]
    given = query[:, :, reach:], *(_shared(x[:, :, :-reach], heads) for x in (key, value))
    grad, out, natural = grad[:, :, reach:], out[:, :, reach:], log_sum[:, :, reach:] * math.log(2.0)
    if not query.is_cuda:
        backward_for_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        grads = backward_for_cpu(grad, *given, out, natural, 0.0, True, scale=scale)
    else:
        far = out.shape[2]
        nothing_random = torch.zeros((), dtype=torch.int64, device=query.device)
        grads = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            grad, *given, out, natural[..., None], nothing_random, nothing_random, None, None, None, far, far,
            0.0, True, scale=scale,
        )  # fmt: skip
    return FarGradients(grads[0], *(_summed(x, kv_heads) for x in grads[1:3]))


def _shared(x: Float[Tensor, "batch kv_heads far head_dim"], heads: int) -> Tensor:
    """A key or value head for each of the query heads that share it."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def _summed(x: Float[Tensor, "batch heads far head_dim"], kv_heads: int) -> Tensor:
    return x if x.shape[1] == kv_heads else x.unflatten(1, (kv_heads, -1)).sum(2)
