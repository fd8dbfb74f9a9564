"""Starting the kernels of addressed attention, and what they are to PyTorch: two operators with their gradients."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor

from contentrope.kernels import rotary
from contentrope.kernels.attention.kernels import backward_kernel, forward_kernel, prepare_kernel
from contentrope.kernels.ops import (
    Differentiable,
    Operator,
    last_contiguous,
    power_of_two,
    programs,
    start,
    strides_of,
)
from contentrope.kernels.tuning import tuned

SHORTEST_CLASS, LONGEST_CLASS = 512, 16384
"""Lengths are tuned as powers of two between these; what is fast for one is fast for its neighbours."""
CACHE_SHARE = 3
"""Heads are scheduled together as long as the keys and values they read fill at most this part of a GPU's L2."""
MOST_ROWS = 64
"""A multiple of all tiles of the backward kernel."""
PREPARED_ROWS = 32
"""Of a program that prepares queries for it."""
INTERPRETED_CACHE = 1 << 15
"""Small, so that small examples have heads that are not scheduled together."""


Queries = Float[Tensor, "batch heads seq head_dim"]
Keys = Float[Tensor, "batch kv_heads seq head_dim"]
ByQuery = Float[Tensor, "batch heads seq"]


class States(NamedTuple):
    query: Queries
    local_key: Keys
    addressed_key: Keys
    value: Keys


class Pairs(NamedTuple):
    """The pair rule as the kernels read it; None where nothing is spared or padding, no unit is memory, and nothing is
    added to the scores of the own unit."""

    start: Int[Tensor, "batch queries"]
    left: Int[Tensor, "batch queries"]
    until: Int[Tensor, "batch keys"]
    spared: Int[Tensor, "batch kv_heads queries"] | None
    local_start: Int[Tensor, "batch queries"]
    valid: Int8[Tensor, "batch keys"] | None
    memory: Int8[Tensor, "batch queries"] | None
    bonus: ByQuery | None

    def flags(self) -> dict[str, bool]:
        return {
            "HAS_SPARED": self.spared is not None,
            "HAS_VALID": self.valid is not None,
            "HAS_MEMORY": self.memory is not None,
            "HAS_BONUS": self.bonus is not None,
        }

    def tensors(self) -> tuple[Tensor, ...]:
        """Where there is nothing to point to, anything will do: it is never read."""
        return tuple(self.start if tensor is None else tensor for tensor in self)


PAIRS = (
    "Tensor start, Tensor left, Tensor until, Tensor? spared, Tensor local_start, Tensor? valid, Tensor? memory, "
    "Tensor? bonus"
)
"""As operators take them."""


# Far keys: plain causal attention, which the libraries of a GPU do best.
#
# Where no unit is longer than ``reach``, a key that lies ``reach`` or more to the left of a query is in an earlier
# unit, so it is addressed and visible, whatever the boundaries. Queries from ``reach`` on and keys up to ``reach``
# before the end are therefore one causal attention of length - reach tokens, without a mask of ours. Its output and
# logsumexp are what the kernels begin with; its gradients, taken with those of all keys, what they end with.

FAR_MULTIPLE = 16
"""The reach is rounded up to it, so that rows stay aligned."""
FAR_WORTH = 12
"""How many times the reach a text must be long: below, what both ways of reading have to begin with costs more."""
FAR_LARGEST_HEAD = 128
FAR_CAPABILITY = (9, 0)
"""Of the GPU, the first: the library's kernel was compared with ours on this one only."""


class FarGradients(NamedTuple):
    query: Float[Tensor, "batch heads far head_dim"]
    key: Float[Tensor, "batch kv_heads far head_dim"]
    value: Float[Tensor, "batch kv_heads far head_dim"]


def reach_of(query: Queries, longest_unit: int | None) -> int:
    """From how many tokens on keys are far; 0 where all are read by the kernels.

    >>> reach_of(torch.zeros(1, 1, 4096, 64, dtype=torch.bfloat16), longest_unit=100)
    0
    """
    if longest_unit is None or not _library_can(query):
        return 0
    reach = -(-longest_unit // FAR_MULTIPLE) * FAR_MULTIPLE
    return reach if query.shape[2] >= FAR_WORTH * reach else 0


def _library_can(query: Tensor) -> bool:
    half = query.dtype in (torch.bfloat16, torch.float16)
    if not (query.is_cuda and half and query.shape[-1] % 8 == 0 and query.shape[-1] <= FAR_LARGEST_HEAD):
        return False
    return torch.backends.cuda.cudnn_sdp_enabled() and torch.cuda.get_device_capability(query.device) >= FAR_CAPABILITY


def far_forward(
    query: Queries, key: Keys, value: Keys, reach: int, scale: float
) -> tuple[Float[Tensor, "batch heads far head_dim"], Float[Tensor, "batch heads far"]]:
    """The output for the far keys alone, and the logsumexp of each query."""
    given = query[:, :, reach:], *(_shared(x[:, :, :-reach], query.shape[1]) for x in (key, value))
    if query.is_cuda:
        found = torch.ops.aten._scaled_dot_product_cudnn_attention(*given, None, True, 0.0, True, False, scale=scale)
    else:  # the kernels run in Triton's interpreter
        found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*given, 0.0, True, scale=scale)
    out, lse = found[:2]
    return out, lse.reshape(out.shape[:3]).contiguous()


def far_backward(
    grad: Queries, query: Queries, key: Keys, value: Keys, out: Queries, lse: ByQuery, reach: int, scale: float
) -> FarGradients:
    """``out`` and ``lse``, to base two as in the kernels, are those of all keys."""
    heads, kv_heads = query.shape[1], key.shape[1]
    given = query[:, :, reach:], *(_shared(x[:, :, :-reach], heads) for x in (key, value))
    grad, out, natural = grad[:, :, reach:], out[:, :, reach:], lse[:, :, reach:] * math.log(2.0)
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
    """A KV head for each of the query heads that share it."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def _summed(x: Float[Tensor, "batch heads far head_dim"], kv_heads: int) -> Tensor:
    return x if x.shape[1] == kv_heads else x.unflatten(1, (kv_heads, -1)).sum(2)


# Starting the kernels: each function writes into results that have been allocated.


def forward(
    results: tuple[Queries, ByQuery], states: States, pairs: Pairs, scale: float, longest_unit: int | None
) -> None:
    """Write the output, and the logsumexp of each query, to base two."""
    query, local_key, addressed_key, value = states
    batch, heads, length, _ = query.shape
    out, lse = results
    if not out.numel():
        return
    # Here, where a compiler does not look: it depends on the device, and a traced length would be guarded.
    reach = reach_of(query, longest_unit)
    far_out, far_lse = far_forward(query, addressed_key, value, reach, scale) if reach else (query, lse)
    start(
        tuned(forward_kernel), lambda tile: (programs(length, tile["M"]) * batch * heads,),
        (*states, *pairs.tensors(), far_out, far_lse, out, lse),
        (*strides_of(*states, far_out, out), length, reach, _concurrent_heads(query, value), scale),
        **_sizes(query, local_key, reach), **pairs.flags(),
    )  # fmt: skip


def backward(
    results: tuple[Queries, Keys, Keys, Keys, Tensor],
    grad: Queries,
    states: States,
    out: Queries,
    lse: ByQuery,
    pairs: Pairs,
    scale: float,
    longest_unit: int | None,
) -> None:
    """Write the gradients of query, local key, addressed key, value and bonus (empty where there is none)."""
    query_grad, *key_grads, value_grad, bonus_grad = results
    query, local_key, addressed_key, value = states
    batch, heads, length, dim = query.shape
    if not query.numel():
        return
    reach = reach_of(query, longest_unit)
    rows = programs(length, MOST_ROWS) * MOST_ROWS
    row_lse, delta = (lse.new_empty(batch, heads, rows) for _ in range(2))
    sizes = _sizes(query, local_key, reach)
    far_grads = FarGradients(query, local_key, value)  # never read where nothing is far
    if reach:
        far_grads = far_backward(grad, query, addressed_key, value, out, lse, reach, scale)
    start(
        prepare_kernel, (rows // PREPARED_ROWS * batch * heads,),
        (grad, out, lse, row_lse, delta), (*strides_of(grad, out), length, rows),
        HEADS=heads, DIM=dim, WIDTH=sizes["WIDTH"], ROWS=PREPARED_ROWS,
    )  # fmt: skip
    given = *states, grad
    lanes = batch * (local_key.shape[1] + heads)
    start(
        tuned(backward_kernel), lambda tile: (programs(length, tile["ROWS"]) * lanes,),
        (*given, *pairs.tensors(), row_lse, delta, *far_grads, query_grad, bonus_grad, *key_grads, value_grad),
        (*strides_of(*given, *far_grads, query_grad, key_grads[1], value_grad),
         length, rows, reach, _concurrent_heads(value, query), scale),
        **sizes, **pairs.flags(),
    )  # fmt: skip


def _by_token(query: Tensor, heads: int) -> Tensor:
    """Memory for so many heads, those of a token side by side."""
    batch, _, length, dim = query.shape
    return query.new_empty(batch, length, heads, dim).transpose(1, 2)


def _outputs(query: Tensor) -> tuple[Tensor, Tensor]:
    """Memory for what :func:`forward` writes."""
    return _by_token(query, query.shape[1]), query.new_empty(query.shape[:3], dtype=torch.float32)


def _bonus_gradient(given: Any) -> Tensor:
    return torch.empty_like(given.lse if given.bonus is not None else given.lse[:0])


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
        "LENGTH_CLASS": min(max(power_of_two(query.shape[2]), SHORTEST_CLASS), LONGEST_CLASS),
    }


def _concurrent_heads(written: Tensor, read: Tensor) -> int:
    """How many heads, of those that programs write to, are scheduled together so that what they read stays in L2; each
    tile of theirs reads two tensors like ``read``."""
    batch, heads, length, dim = read.shape
    fitting = _cache_bytes(read.device) // CACHE_SHARE // (2 * length * dim * read.element_size())
    sections = programs(batch * heads, max(1, fitting))
    return programs(batch * written.shape[1], sections)


@functools.cache
def _cache_bytes(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else INTERPRETED_CACHE


# Attention as an operator of PyTorch.


def pairs_in(given: Any) -> Pairs:
    """Those among the arguments of an operator."""
    return Pairs._make(getattr(given, name) for name in Pairs._fields)


def _allocate(given: Any) -> tuple[Tensor, Tensor]:
    return _outputs(given.query)


def _attend(results: tuple[Tensor, Tensor], given: Any) -> None:
    states = States._make(map(last_contiguous, given[:4]))
    forward(results, states, pairs_in(given), given.scale, given.longest_unit)


def _allocate_gradients(given: Any) -> tuple[Tensor, ...]:
    query, kv_heads = given.query, given.local_key.shape[1]
    key_grads = [_by_token(query, kv_heads) for _ in range(3)]
    return _by_token(query, query.shape[1]), *key_grads, _bonus_gradient(given)


def _attend_backward(results: tuple[Tensor, Tensor, Tensor, Tensor, Tensor], given: Any) -> None:
    grad, *states = map(last_contiguous, given[:5])
    backward(
        results, grad, States._make(states), given.out, given.lse, pairs_in(given), given.scale, given.longest_unit
    )


attention = Differentiable(
    Operator(
        f"fused_attention(Tensor query, Tensor local_key, Tensor addressed_key, Tensor value, {PAIRS}, "
        "float scale, SymInt? longest_unit) -> (Tensor out, Tensor lse)",
        _allocate,
        _attend,
    ),
    Operator(
        "fused_attention_backward(Tensor out_grad, Tensor query, Tensor local_key, Tensor addressed_key, Tensor value, "
        f"Tensor out, Tensor lse, {PAIRS}, float scale, SymInt? longest_unit) -> (Tensor query_grad, "
        "Tensor local_key_grad, Tensor addressed_key_grad, Tensor value_grad, Tensor bonus_grad)",
        _allocate_gradients,
        _attend_backward,
    ),
)
"""The output, and for the backward pass the logsumexp of each query."""


# Rotation and attention as one operator, for queries, keys and values that one projection gave: so is their gradient.


def _parts(qkv: Tensor, kv_heads: int) -> tuple[Tensor, ...]:
    """Queries, keys, values."""
    return qkv.split((qkv.shape[2] - 2 * kv_heads, kv_heads, kv_heads), dim=2)


def _allocate_packed(given: Any) -> tuple[Tensor, ...]:
    query, key, _ = _parts(given.qkv, given.kv_heads)
    return *_outputs(query.transpose(1, 2)), *rotary.states_for(query, key, with_local=True)


def _attend_packed(results: tuple[Tensor, Tensor, Tensor, Tensor, Tensor], given: Any) -> None:
    out, lse, *states = results
    query, key, value = _parts(last_contiguous(given.qkv), given.kv_heads)
    rotary.forward((states[0], states[1], states[2]), query, key, rotary.rotations_in(given))
    by_head = States._make(x.transpose(1, 2) for x in (*states, value))
    forward((out, lse), by_head, pairs_in(given), given.scale, given.longest_unit)


def _allocate_packed_gradients(given: Any) -> tuple[Tensor, Tensor, Tensor]:
    angles = rotary.angles_for(given.addressed, given.cos, given.needs_angles)
    return given.qkv.new_empty(given.qkv.shape), angles, _bonus_gradient(given)


def _attend_packed_backward(results: tuple[Tensor, Tensor, Tensor], given: Any) -> None:
    qkv_grad, angle_grad, bonus_grad = results
    query_grad, key_grad, value_grad = _parts(qkv_grad, given.kv_heads)
    value = _parts(last_contiguous(given.qkv), given.kv_heads)[2]
    to_states = rotary.states_for(given.rotated, given.local, with_local=True)
    grads = [x.transpose(1, 2) for x in (*to_states, value_grad)]
    states = States._make(x.transpose(1, 2) for x in (given.rotated, given.local, given.addressed, value))
    backward(
        (grads[0], grads[1], grads[2], grads[3], bonus_grad), last_contiguous(given.out_grad), states,
        given.out, given.lse, pairs_in(given), given.scale, given.longest_unit,
    )  # fmt: skip
    rotations = rotary.rotations_in(given)
    rotary.backward((query_grad, key_grad, angle_grad), to_states, given.rotated, given.addressed, rotations)


packed_attention = Differentiable(
    Operator(
        f"packed_attention(Tensor qkv, Tensor? angles, {rotary.ROTATIONS}, {PAIRS}, SymInt kv_heads, float scale, "
        "SymInt? longest_unit) -> (Tensor out, Tensor lse, Tensor rotated, Tensor local, Tensor addressed)",
        _allocate_packed,
        _attend_packed,
    ),
    Operator(
        f"packed_attention_backward(Tensor out_grad, Tensor qkv, {rotary.ROTATIONS}, {PAIRS}, Tensor out, Tensor lse, "
        "Tensor rotated, Tensor local, Tensor addressed, SymInt kv_heads, float scale, SymInt? longest_unit, "
        "bool needs_angles) -> (Tensor qkv_grad, Tensor angles_grad, Tensor bonus_grad)",
        _allocate_packed_gradients,
        _attend_packed_backward,
    ),
)
"""The output; and, for the backward pass, the logsumexp of each query, rotated queries, local keys, addressed keys."""
