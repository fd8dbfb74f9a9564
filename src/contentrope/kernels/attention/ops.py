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
from contentrope.kernels.attention.window import window_backward_kernel, window_forward_kernel
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
MOST_ROWS = 128
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
    far_query: Queries | None = None
    """With a near window, what reads addressed keys; ``query`` reads local, near ones then."""

    def present(self) -> tuple[Tensor, ...]:
        return self[:4] if self.far_query is None else (*self[:4], self.far_query)


class Pairs(NamedTuple):
    """The pair rule as the kernels read it; None where nothing is padding, no unit is memory, and nothing is added to
    the scores of the own unit and of near keys."""

    start: Int[Tensor, "batch queries"]
    left: Int[Tensor, "batch queries"]
    until: Int[Tensor, "batch keys"]
    local_start: Int[Tensor, "batch queries"]
    valid: Int8[Tensor, "batch keys"] | None
    memory: Int8[Tensor, "batch queries"] | None
    bonus: ByQuery | None

    def flags(self) -> dict[str, bool]:
        return {
            "HAS_VALID": self.valid is not None,
            "HAS_MEMORY": self.memory is not None,
            "HAS_BONUS": self.bonus is not None,
        }

    def tensors(self) -> tuple[Tensor, ...]:
        """Where there is nothing to point to, anything will do: it is never read."""
        return tuple(self.start if tensor is None else tensor for tensor in self)


PAIRS = "Tensor start, Tensor left, Tensor until, Tensor local_start, Tensor? valid, Tensor? memory, Tensor? bonus"
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
WINDOW_SHARE = 4
"""A window's tokens count for so many times less: the kernels read near keys as plain attention does."""
FAR_LARGEST_HEAD = 128
FAR_CAPABILITY = (9, 0)
"""Of the GPU, the first: the library's kernel was compared with ours on this one only."""
LOG2_E = 1 / math.log(2.0)


class Reading(NamedTuple):
    """What the host knows of how a text is read."""

    scale: float
    longest_unit: int | None
    window: int
    """Tokens of the near window; 0: there is none."""


class FarGradients(NamedTuple):
    query: Float[Tensor, "batch heads far head_dim"]
    key: Float[Tensor, "batch kv_heads far head_dim"]
    value: Float[Tensor, "batch kv_heads far head_dim"]


def reach_of(query: Queries, longest_unit: int | None, window: int = 0) -> int:
    """From how many tokens on keys are far for certain; 0 where all are read by the kernels.

    >>> reach_of(torch.zeros(1, 1, 4096, 64, dtype=torch.bfloat16), longest_unit=100)
    0
    """
    if longest_unit is None or not _library_can(query):
        return 0
    longest = -(-longest_unit // FAR_MULTIPLE) * FAR_MULTIPLE
    near = -(-window // FAR_MULTIPLE) * FAR_MULTIPLE
    return longest + near if query.shape[2] >= FAR_WORTH * (longest + near // WINDOW_SHARE) else 0


def is_plain(query: Queries, pairs: Pairs, window: int) -> bool:
    """Whether the whole text is near and nothing hidden: plain causal attention, which is left to the library."""
    return _all_near(query.shape[2], pairs, window) and _library_can(query)


def _all_near(length: int, pairs: Pairs, window: int) -> bool:
    return length <= window and pairs.valid is None and pairs.memory is None


def _library_can(query: Tensor) -> bool:
    half = query.dtype in (torch.bfloat16, torch.float16)
    if not (query.is_cuda and half and query.shape[-1] % 8 == 0 and query.shape[-1] <= FAR_LARGEST_HEAD):
        return False
    return torch.backends.cuda.cudnn_sdp_enabled() and torch.cuda.get_device_capability(query.device) >= FAR_CAPABILITY


def far_forward(
    query: Queries, key: Keys, value: Keys, reach: int, scale: float
) -> tuple[Float[Tensor, "batch heads far head_dim"], Float[Tensor, "batch heads far"]]:
    """The output for the far keys alone, and the logsumexp of each query."""
    given = query[:, :, reach:], *(_shared(x[:, :, : x.shape[2] - reach], query.shape[1]) for x in (key, value))
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
    given = query[:, :, reach:], *(_shared(x[:, :, : x.shape[2] - reach], heads) for x in (key, value))
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
    results: tuple[Queries, ByQuery], states: States, pairs: Pairs, reading: Reading
) -> tuple[Queries, ByQuery]:
    """The output, and the logsumexp of each query, to base two: written into the results, unless a library has made
    its own."""
    batch, heads, length, _ = states.query.shape
    out, lse = results
    if not out.numel():
        return results
    # Here, where a compiler does not look: it depends on the device, and a traced length would be guarded.
    if is_plain(states.query, pairs, reading.window):
        return plain_forward(results, states, reading.scale)
    reach = reach_of(states.query, reading.longest_unit, reading.window)
    far_out, far_lse = states.query, lse  # never read where nothing is far
    if reach:
        far_out, far_lse = far_forward(far_query_of(states), states.addressed_key, states.value, reach, reading.scale)
    given = states.present()
    start(
        tuned(forward_kernel if states.far_query is None else window_forward_kernel),
        lambda tile: (programs(length, tile["M"]) * batch * heads,),
        (*given, *pairs.tensors(), far_out, far_lse, out, lse),
        (*strides_of(*given, far_out, out), length, reach, _concurrent_heads(states.query, states.value),
         reading.scale),
        **_sizes(states.query, states.local_key, reach), **pairs.flags(),
    )  # fmt: skip
    return results


class Gradients(NamedTuple):
    query: Queries
    local_key: Keys
    addressed_key: Keys
    value: Keys
    far_query: Tensor
    """Empty without a window."""
    bonus: Tensor
    """Empty where there is none."""


def backward(
    results: Gradients, grad: Queries, states: States, out: Queries, lse: ByQuery, pairs: Pairs, reading: Reading
) -> Gradients:
    """Written into the results, unless a library has made its own."""
    query, local_key, addressed_key, value, far_query = states
    batch, heads, length, dim = query.shape
    if not query.numel():
        return results
    if is_plain(query, pairs, reading.window):
        return plain_backward(results, grad, states, out, lse, reading.scale)
    reach = reach_of(query, reading.longest_unit, reading.window)
    rows = programs(length, MOST_ROWS) * MOST_ROWS
    row_lse, delta = (lse.new_empty(batch, heads, rows) for _ in range(2))
    sizes = _sizes(query, local_key, reach)
    far_grads = FarGradients(query, local_key, value)  # never read where nothing is far
    if reach:
        far_grads = far_backward(grad, far_query_of(states), addressed_key, value, out, lse, reach, reading.scale)
    start(
        prepare_kernel, (rows // PREPARED_ROWS * batch * heads,),
        (grad, out, lse, row_lse, delta), (*strides_of(grad, out), length, rows),
        HEADS=heads, DIM=dim, WIDTH=sizes["WIDTH"], ROWS=PREPARED_ROWS,
    )  # fmt: skip
    given = *states.present(), grad
    to_queries = (results.query,) if far_query is None else (results.query, results.far_query)
    lanes = batch * (local_key.shape[1] + heads)
    start(
        tuned(backward_kernel if far_query is None else window_backward_kernel),
        lambda tile: (programs(length, tile["ROWS"]) * lanes,),
        (*given, *pairs.tensors(), row_lse, delta, *far_grads, *to_queries, results.bonus,
         results.local_key, results.addressed_key, results.value),
        (*strides_of(*given, *far_grads, results.query, results.addressed_key, results.value),
         length, rows, reach, _concurrent_heads(value, query), reading.scale),
        **sizes, **pairs.flags(),
    )  # fmt: skip
    return results


def far_query_of(states: States) -> Queries:
    return states.query if states.far_query is None else states.far_query


def plain_forward(results: tuple[Queries, ByQuery], states: States, scale: float) -> tuple[Queries, ByQuery]:
    out, lse = far_forward(states.query, states.local_key, states.value, 0, scale)
    return _placed(out, results[0]), torch.mul(lse, LOG2_E, out=results[1])


def plain_backward(
    results: Gradients, grad: Queries, states: States, out: Queries, lse: ByQuery, scale: float
) -> Gradients:
    """Nothing is far: those gradients are left as they are. A bonus that all keys have changes nothing."""
    found = far_backward(grad, states.query, states.local_key, states.value, out, lse, 0, scale)
    results.bonus.zero_()
    return results._replace(query=found.query, local_key=found.key, value=found.value)


def _placed(found: Tensor, promised: Tensor) -> Tensor:
    """What a library has found, lying as a compiler was told that it would."""
    return found if found.stride() == promised.stride() else promised.copy_(found)


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


def _states_in(given: Any) -> States:
    named = (getattr(given, name) for name in States._fields)
    return States(*(None if x is None else last_contiguous(x) for x in named))  # type: ignore[arg-type]


def _reading_in(given: Any) -> Reading:
    return Reading(given.scale, given.longest_unit, given.window)


def _attend(results: tuple[Tensor, Tensor], given: Any) -> tuple[Tensor, Tensor]:
    return forward(results, _states_in(given), pairs_in(given), _reading_in(given))


def _allocate_gradients(given: Any) -> tuple[Tensor, ...]:
    query, kv_heads, heads = given.query, given.local_key.shape[1], given.query.shape[1]
    key_grads = [_by_token(query, kv_heads) for _ in range(3)]
    far_query = query.new_empty(0) if given.far_query is None else _by_token(query, heads)
    return _by_token(query, heads), *key_grads, far_query, _bonus_gradient(given)


def _attend_backward(results: tuple[Tensor, ...], given: Any) -> tuple[Tensor, ...]:
    grad = last_contiguous(given.out_grad)
    promised, pairs = Gradients(*results), pairs_in(given)
    found = backward(promised, grad, _states_in(given), given.out, given.lse, pairs, _reading_in(given))
    if is_plain(given.query, pairs, given.window):
        found.addressed_key.zero_()
        found.far_query.zero_()
    return tuple(map(_placed, found, promised))


STATES = "Tensor query, Tensor local_key, Tensor addressed_key, Tensor value, Tensor? far_query"
READING = "float scale, SymInt? longest_unit, SymInt window"
"""As operators take them."""

attention = Differentiable(
    Operator(
        f"fused_attention({STATES}, {PAIRS}, {READING}) -> (Tensor out, Tensor lse)",
        _allocate,
        _attend,
    ),
    Operator(
        f"fused_attention_backward(Tensor out_grad, {STATES}, Tensor out, Tensor lse, {PAIRS}, {READING}) -> "
        "(Tensor query_grad, Tensor local_key_grad, Tensor addressed_key_grad, Tensor value_grad, "
        "Tensor far_query_grad, Tensor bonus_grad)",
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
    states = rotary.states_for(query, key, with_local=True, has_window=given.far_cos is not None)
    return *_outputs(query.transpose(1, 2)), *states


def _by_head(rotated: rotary.Rotated, value: Tensor) -> States:
    query, local, addressed, far_query = rotated
    query, local, addressed, value = (x.transpose(1, 2) for x in (query, local, addressed, value))
    return States(query, local, addressed, value, far_query.transpose(1, 2) if far_query.ndim == 4 else None)


def _reads_far(given: Any) -> bool:
    """False where a window holds the whole text."""
    return given.far_cos is None or not _all_near(given.qkv.shape[1], pairs_in(given), given.window)


def _attend_packed(results: tuple[Tensor, ...], given: Any) -> tuple[Tensor, ...]:
    out, lse, *rest = results
    rotated = rotary.Rotated(*rest)
    query, key, value = _parts(last_contiguous(given.qkv), given.kv_heads)
    rotary.forward(rotated, query, key, rotary.rotations_in(given), _reads_far(given))
    return *forward((out, lse), _by_head(rotated, value), pairs_in(given), _reading_in(given)), *rotated


def _allocate_packed_gradients(given: Any) -> tuple[Tensor, Tensor, Tensor]:
    angles = rotary.angles_for(given.addressed, given.cos, given.needs_angles)
    return given.qkv.new_empty(given.qkv.shape), angles, _bonus_gradient(given)


def _attend_packed_backward(results: tuple[Tensor, Tensor, Tensor], given: Any) -> None:
    qkv_grad, angle_grad, bonus_grad = results
    query_grad, key_grad, value_grad = _parts(qkv_grad, given.kv_heads)
    value = _parts(last_contiguous(given.qkv), given.kv_heads)[2]
    rotated = rotary.Rotated(given.rotated, given.local, given.addressed, given.far_rotated)
    room = rotary.states_for(given.rotated, given.local, with_local=True, has_window=given.far_cos is not None)
    states = _by_head(rotated, value)
    query, local, addressed, to_value = (x.transpose(1, 2) for x in (*room[:3], value_grad))
    far_query = room.far_query if states.far_query is None else room.far_query.transpose(1, 2)
    promised = Gradients(query, local, addressed, to_value, far_query, bonus_grad)
    grad = last_contiguous(given.out_grad)
    found = backward(promised, grad, states, given.out, given.lse, pairs_in(given), _reading_in(given))
    if found.value is not promised.value:
        promised.value.copy_(found.value)
    query, local, addressed = (x.transpose(1, 2) for x in found[:3])
    to_states, rotations = rotary.Rotated(query, local, addressed, room.far_query), rotary.rotations_in(given)
    rotary.backward((query_grad, key_grad, angle_grad), to_states, rotated, rotations, _reads_far(given))


packed_attention = Differentiable(
    Operator(
        f"packed_attention(Tensor qkv, Tensor? angles, {rotary.ROTATIONS}, {PAIRS}, SymInt kv_heads, {READING}) -> "
        "(Tensor out, Tensor lse, Tensor rotated, Tensor local, Tensor addressed, Tensor far_rotated)",
        _allocate_packed,
        _attend_packed,
    ),
    Operator(
        f"packed_attention_backward(Tensor out_grad, Tensor qkv, {rotary.ROTATIONS}, {PAIRS}, Tensor out, Tensor lse, "
        f"Tensor rotated, Tensor local, Tensor addressed, Tensor far_rotated, SymInt kv_heads, {READING}, "
        "bool needs_angles) -> (Tensor qkv_grad, Tensor angles_grad, Tensor bonus_grad)",
        _allocate_packed_gradients,
        _attend_packed_backward,
    ),
)
"""The output; and, for the backward pass, the logsumexp of each query and :class:`rotary.Rotated`."""
