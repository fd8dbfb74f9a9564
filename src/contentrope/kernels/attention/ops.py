"""Starting the kernels of addressed attention, and what they are to PyTorch: two operators with their gradients."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor

from contentrope.kernels import rotary
from contentrope.kernels.attention.kernels import backward_kernel, forward_kernel, prepare_kernel
from contentrope.kernels.launch import power_of_two, programs, start
from contentrope.kernels.ops import Differentiable, Operator, last_contiguous
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


class Pairs(NamedTuple):
    """The pair rule as the kernels read it; None where nothing is padding, or no unit is memory."""

    start: Int[Tensor, "batch queries"]
    left: Int[Tensor, "batch queries"]
    until: Int[Tensor, "batch keys"]
    spared: Int[Tensor, "batch kv_heads queries"] | None
    local_start: Int[Tensor, "batch queries"]
    valid: Int8[Tensor, "batch keys"] | None
    memory: Int8[Tensor, "batch queries"] | None

    def flags(self) -> dict[str, bool]:
        return {
            "HAS_SPARED": self.spared is not None,
            "HAS_VALID": self.valid is not None,
            "HAS_MEMORY": self.memory is not None,
        }

    def pointers(self) -> tuple[Tensor, ...]:
        """Where there is nothing to point to, anything will do: it is never read."""
        return tuple(self.start if tensor is None else tensor for tensor in self)


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


# Starting the kernels: shapes, strides, and tiles chosen once for every class of shapes.


def forward(
    query: Queries,
    local_key: Keys,
    addressed_key: Keys,
    value: Keys,
    pairs: Pairs,
    bonus: ByQuery | None,
    scale: float,
    reach: int,
) -> tuple[Queries, ByQuery]:
    """The output, and the logsumexp of each query, to base two. ``reach``: from how many tokens on keys are far; 0:
    none are."""
    batch, heads, length, _ = query.shape
    out, lse = _outputs(query)
    if not out.numel():
        return out, lse
    far_out, far_lse = query, lse
    if reach:
        far_out, far_lse = far_forward(query, addressed_key, value, reach, scale)
    start(
        tuned(forward_kernel), lambda tile: (programs(length, tile["M"]) * batch * heads,),
        (query, local_key, addressed_key, value, *pairs.pointers(), pairs.start if bonus is None else bonus,
         far_out, far_lse, out, lse),
        (*_strides(query, local_key, addressed_key, value, far_out, out),
         length, reach, _concurrent_heads(query, value), scale),
        **_sizes(query, local_key, reach), **pairs.flags(), HAS_BONUS=bonus is not None,
    )  # fmt: skip
    return out, lse


def backward(
    grad: Queries,
    query: Queries,
    local_key: Keys,
    addressed_key: Keys,
    value: Keys,
    out: Queries,
    lse: ByQuery,
    pairs: Pairs,
    bonus: ByQuery | None,
    scale: float,
    reach: int,
    value_grad: Keys | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, local key, addressed key, value and bonus (empty where there is none). That of the values is
    written into ``value_grad``, if it is given."""
    batch, heads, length, dim = query.shape
    kv_heads = local_key.shape[1]
    grads = query_grad, *key_grads, value_grad, bonus_grad = _gradients(query, kv_heads, lse, bonus, value_grad)
    if not query.numel():
        return grads
    rows = programs(length, MOST_ROWS) * MOST_ROWS
    row_lse, delta = (lse.new_empty(batch, heads, rows) for _ in range(2))
    sizes = _sizes(query, local_key, reach)
    beyond = FarGradients(query, local_key, value)  # never read where nothing is beyond reach
    if reach:
        beyond = far_backward(grad, query, addressed_key, value, out, lse, reach, scale)
    start(
        prepare_kernel, (rows // PREPARED_ROWS * batch * heads,),
        (grad, out, lse, row_lse, delta), (*_strides(grad, out), length, rows),
        HEADS=heads, DIM=dim, WIDTH=sizes["WIDTH"], ROWS=PREPARED_ROWS,
    )  # fmt: skip
    given = query, local_key, addressed_key, value, grad
    facts = *pairs.pointers(), pairs.start if bonus is None else bonus, row_lse, delta
    lanes = batch * (kv_heads + heads)
    start(
        tuned(backward_kernel), lambda tile: (programs(length, tile["ROWS"]) * lanes,),
        (*given, *facts, *beyond, query_grad, bonus_grad, *key_grads, value_grad),
        (*_strides(*given, *beyond, query_grad, key_grads[1], value_grad),
         length, rows, reach, _concurrent_heads(value, query), scale),
        **sizes, **pairs.flags(), HAS_BONUS=bonus is not None,
    )  # fmt: skip
    return grads


def _by_token(query: Tensor, heads: int) -> Tensor:
    """Room for so many heads, those of a token side by side."""
    batch, _, length, dim = query.shape
    return query.new_empty(batch, length, heads, dim).transpose(1, 2)


def _outputs(query: Tensor) -> tuple[Tensor, Tensor]:
    """Room for what :func:`forward` gives."""
    return _by_token(query, query.shape[1]), query.new_empty(query.shape[:3], dtype=torch.float32)


def _gradients(
    query: Tensor, kv_heads: int, lse: Tensor, bonus: Tensor | None, value_grad: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Room for what :func:`backward` gives."""
    value_grad = _by_token(query, kv_heads) if value_grad is None else value_grad
    bonus_grad = torch.empty_like(lse if bonus is not None else lse[:0])
    return (
        _by_token(query, query.shape[1]),
        _by_token(query, kv_heads),
        _by_token(query, kv_heads),
        value_grad,
        bonus_grad,
    )


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


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(stride for tensor in tensors for stride in tensor.stride()[:3])


# Attention as an operator of PyTorch.

PAIRS = (
    "Tensor start, Tensor left, Tensor until, Tensor? spared, Tensor local_start, Tensor? valid, Tensor? memory, "
    "Tensor? bonus"
)
"""As operators take them."""


def _attend(
    query: Tensor, local_key: Tensor, addressed_key: Tensor, value: Tensor, *rest: Any
) -> tuple[Tensor, Tensor]:
    *pairs, bonus, scale, longest_unit = rest
    query, local_key, addressed_key, value = map(last_contiguous, (query, local_key, addressed_key, value))
    # Here, where a compiler does not look: it depends on the device, and a traced length would be guarded.
    reach = reach_of(query, longest_unit)
    return forward(query, local_key, addressed_key, value, Pairs(*pairs), bonus, scale, reach)


def _attend_shapes(query: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return _outputs(query)


def _attend_backward(*given: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    grad, query, local_key, addressed_key, value = map(last_contiguous, given[:5])
    out, lse, *pairs, bonus, scale, longest_unit = given[5:]
    reach = reach_of(query, longest_unit)
    return backward(grad, query, local_key, addressed_key, value, out, lse, Pairs(*pairs), bonus, scale, reach)


def _attend_backward_shapes(*given: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    query, local_key, lse, bonus = given[1], given[2], given[6], given[-3]
    return _gradients(query, local_key.shape[1], lse, bonus)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)  # nobody differentiates the logsumexp
    *tensors, scale, longest_unit = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.scale, ctx.longest_unit = scale, longest_unit


def _differentiate(backward: Callable[..., Any], ctx: Any, grad: Tensor, _: None) -> tuple[Tensor | None, ...]:
    query, local_key, addressed_key, value, *pairs, bonus, out, lse = ctx.saved_tensors
    given = grad, query, local_key, addressed_key, value, out, lse, *pairs, bonus
    grads = backward(*given, ctx.scale, ctx.longest_unit)
    to_bonus = grads[4] if bonus is not None else None
    return *grads[:4], *(None for _ in pairs), to_bonus, None, None


attention = Differentiable(
    Operator(
        f"fused_attention(Tensor query, Tensor local_key, Tensor addressed_key, Tensor value, {PAIRS}, "
        "float scale, SymInt? longest_unit) -> (Tensor, Tensor)",
        _attend,
        _attend_shapes,
    ),
    Operator(
        "fused_attention_backward(Tensor grad, Tensor query, Tensor local_key, Tensor addressed_key, Tensor value, "
        f"Tensor out, Tensor lse, {PAIRS}, float scale, SymInt? longest_unit)"
        " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        _attend_backward,
        _attend_backward_shapes,
    ),
    _keep,
    _differentiate,
)
"""The output, and for the backward pass the logsumexp of each query."""


# Rotation and attention as one operator, for queries, keys and values that one projection gave: so is their gradient.

ROTATIONS_END = 6
PAIRS_END = ROTATIONS_END + len(Pairs._fields)
WITH_LOCAL = True


def _parts(qkv: Tensor, kv_heads: int) -> tuple[Tensor, ...]:
    """Queries, keys, values."""
    return qkv.split((qkv.shape[2] - 2 * kv_heads, kv_heads, kv_heads), dim=2)


def _attend_packed(qkv: Tensor, angles: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    pairs, (bonus, kv_heads, interleaved, scale, longest_unit) = rest[ROTATIONS_END:PAIRS_END], rest[PAIRS_END:]
    query, key, value = _parts(last_contiguous(qkv), kv_heads)
    states = rotary.forward(query, key, rotary.Rotations._make((*rest[:ROTATIONS_END], interleaved, WITH_LOCAL)))
    rotated, local, addressed, value = (x.transpose(1, 2) for x in (*states, value))
    reach = reach_of(rotated, longest_unit)
    out, lse = forward(rotated, local, addressed, value, Pairs(*pairs), bonus, scale, reach)
    return out, lse, *states


def _attend_packed_shapes(qkv: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    query, key, _ = _parts(qkv, rest[-4])
    return *_outputs(query.transpose(1, 2)), *rotary.states_for(query, key, WITH_LOCAL)


def _attend_packed_backward(grad: Tensor, qkv: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of ``qkv``, of the angles, and of the bonus (both empty where they are not asked for)."""
    pairs, (bonus, out, lse, rotated, local, addressed, *settings) = rest[ROTATIONS_END:PAIRS_END], rest[PAIRS_END:]
    kv_heads, interleaved, scale, longest_unit, to_angles = settings
    qkv_grad = qkv.new_empty(qkv.shape)
    angle_grad = rotary.angles_for(addressed, rest[0], to_angles)
    query_grad, key_grad, value_grad = _parts(qkv_grad, kv_heads)
    value = _parts(last_contiguous(qkv), kv_heads)[2]
    reading, local_keys, addressed_keys, values = (x.transpose(1, 2) for x in (rotated, local, addressed, value))
    to_rotated, to_local, to_addressed, _, bonus_grad = backward(
        last_contiguous(grad), reading, local_keys, addressed_keys, values, out, lse, Pairs(*pairs), bonus, scale,
        reach_of(reading, longest_unit), value_grad.transpose(1, 2),
    )  # fmt: skip
    rotations = rotary.Rotations._make((*rest[:ROTATIONS_END], interleaved, WITH_LOCAL))
    to_states = to_rotated.transpose(1, 2), to_local.transpose(1, 2), to_addressed.transpose(1, 2)
    rotary.backward(to_states, rotated, addressed, rotations, (query_grad, key_grad, angle_grad))
    return qkv_grad, angle_grad, bonus_grad


def _attend_packed_backward_shapes(grad: Tensor, qkv: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    cos, to_angles, (bonus, _, lse, _, _, addressed) = rest[0], rest[-1], rest[PAIRS_END : PAIRS_END + 6]
    angle_grad = rotary.angles_for(addressed, cos, to_angles)
    return qkv.new_empty(qkv.shape), angle_grad, torch.empty_like(lse if bonus is not None else lse[:0])


def _keep_packed(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)  # nobody differentiates what is kept for the backward pass
    qkv, _, *facts, kv_heads, interleaved, scale, longest_unit = inputs
    ctx.save_for_backward(qkv, *facts, *output)
    ctx.settings = kv_heads, interleaved, scale, longest_unit


def _differentiate_packed(
    backward: Callable[..., Any], ctx: Any, grad: Tensor, *unused: None
) -> tuple[Tensor | None, ...]:
    to_angles = ctx.needs_input_grad[1]
    qkv_grad, angle_grad, bonus_grad = backward(grad, *ctx.saved_tensors, *ctx.settings, to_angles)
    to_bonus = bonus_grad if ctx.needs_input_grad[2 + PAIRS_END] else None
    nothing = (None for _ in range(PAIRS_END))
    return qkv_grad, angle_grad if to_angles else None, *nothing, to_bonus, None, None, None, None


packed_attention = Differentiable(
    Operator(
        f"packed_attention(Tensor qkv, Tensor? angles, {rotary.ROTATIONS}, {PAIRS}, SymInt kv_heads, "
        "bool interleaved, float scale, SymInt? longest_unit) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        _attend_packed,
        _attend_packed_shapes,
    ),
    Operator(
        f"packed_attention_backward(Tensor grad, Tensor qkv, {rotary.ROTATIONS}, {PAIRS}, Tensor out, Tensor lse, "
        "Tensor rotated, Tensor local, Tensor addressed, SymInt kv_heads, bool interleaved, float scale, "
        "SymInt? longest_unit, bool to_angles) -> (Tensor, Tensor, Tensor)",
        _attend_packed_backward,
        _attend_packed_backward_shapes,
    ),
    _keep_packed,
    _differentiate_packed,
)
"""The output; and, for the backward pass, the logsumexp of each query, rotated queries, local keys, addressed keys."""
