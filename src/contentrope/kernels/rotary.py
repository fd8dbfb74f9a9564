"""Queries and keys at their local positions and addresses, in one kernel; ``contentrope.rotary`` defines the numbers.

A layer reads its queries once and its keys once, and writes what attention needs: rotated queries, local keys and
addressed keys. The cosines and sines of addresses, which token by token are twice as large as the queries, are read
unit by unit.

A program takes some rows: a row is one head of one token. The third axis of the grid says whether of queries (0) or of
keys (1). Lanes are the pairs of a head, whose two dimensions are loaded as two tiles; dimensions that are not rotated
are copied. Everything is computed in float32, and in the same order every time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from contentrope.kernels.ops import (
    Differentiable,
    Operator,
    broadcast_strides,
    last_contiguous,
    power_of_two,
    programs,
    start,
    strides_of,
)
from contentrope.kernels.rotary_parts import (
    address_rotation,
    by_angle,
    copy_rest,
    load_pairs,
    local_rotation,
    offsets,
    packed_offsets,
    places,
    rotate_pair,
    store_pairs,
)
from contentrope.kernels.rotary_window import rotate_window_backward_kernel, rotate_window_kernel

PAIRS_AT_ONCE = 1024
"""Of a program; with four warps, eight a thread."""
TOKENS_AT_ONCE, COLUMNS_AT_ONCE = 16, 128
"""Of a program that sums up what the tokens of a unit have given."""


@triton.jit
def rotate_queries(
    source, source_b, source_t, source_h, target, target_b, target_t, target_h, direction,
    cos, sin, address_cos, address_sin, slot, closes, lane, cos_b, cos_t, cos_h, length, slots,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
    PAIRS: tl.constexpr, REST: tl.constexpr, REST_WIDTH: tl.constexpr, INTERLEAVED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Forwards (1) queries, backwards (-1) their gradients; by their unit's address too where they close it."""
    batch = tl.program_id(1).to(tl.int64)
    token, head, is_there = places(tl.program_id(0), length, HEADS, ROWS)
    of_keys = head // (HEADS // KV_HEADS)
    cosine, sine = local_rotation(cos, sin, batch, token, of_keys, lane, is_there, PAIRS, cos_b, cos_t, cos_h)
    closing = is_there & (tl.load(closes + batch * length + token) != 0)
    to_cos, to_sin = address_rotation(
        address_cos, address_sin, slot, batch, token, of_keys, lane, closing, length, slots, KV_HEADS, PAIRS
    )
    cosine, sine = rotate_pair(cosine, sine, to_cos, to_sin)
    rows = offsets(batch, token, head, source_b, source_t, source_h)
    out = offsets(batch, token, head, target_b, target_t, target_h)
    a, b = load_pairs(source, rows, is_there, lane, PAIRS, INTERLEAVED)
    a, b = rotate_pair(a, b, cosine, direction * sine)
    store_pairs(target, out, is_there, lane, a, b, PAIRS, INTERLEAVED)
    if REST:
        copy_rest(source, rows, target, out, is_there, PAIRS, REST, REST_WIDTH)


@triton.jit
def rotate_kernel(
    query, key, cos, sin, address_cos, address_sin, slot, closes, rotated, local, addressed,
    query_b, query_t, query_h, key_b, key_t, key_h, cos_b, cos_t, cos_h, length, slots,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAIRS: tl.constexpr, WIDTH: tl.constexpr,
    REST: tl.constexpr, REST_WIDTH: tl.constexpr, INTERLEAVED: tl.constexpr, LOCAL: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(1).to(tl.int64)
    lane = tl.arange(0, WIDTH)
    if tl.program_id(2) == 0:
        rotate_queries(
            query, query_b, query_t, query_h, rotated, tl.cast(length, tl.int64) * (HEADS * DIM), HEADS * DIM, DIM, 1.0,
            cos, sin, address_cos, address_sin, slot, closes, lane, cos_b, cos_t, cos_h, length, slots,
            HEADS, KV_HEADS, DIM, PAIRS, REST, REST_WIDTH, INTERLEAVED, ROWS,
        )  # fmt: skip
    else:
        token, head, is_there = places(tl.program_id(0), length, KV_HEADS, ROWS)
        cosine, sine = local_rotation(cos, sin, batch, token, head, lane, is_there, PAIRS, cos_b, cos_t, cos_h)
        to_cos, to_sin = address_rotation(
            address_cos, address_sin, slot, batch, token, head, lane, is_there, length, slots, KV_HEADS, PAIRS
        )
        rows = offsets(batch, token, head, key_b, key_t, key_h)
        out = packed_offsets(batch, token, head, length, KV_HEADS, DIM)
        a, b = load_pairs(key, rows, is_there, lane, PAIRS, INTERLEAVED)
        if LOCAL:
            here_a, here_b = rotate_pair(a, b, cosine, sine)
            store_pairs(local, out, is_there, lane, here_a, here_b, PAIRS, INTERLEAVED)
        cosine, sine = rotate_pair(cosine, sine, to_cos, to_sin)
        there_a, there_b = rotate_pair(a, b, cosine, sine)
        store_pairs(addressed, out, is_there, lane, there_a, there_b, PAIRS, INTERLEAVED)
        if REST:
            if LOCAL:
                copy_rest(key, rows, local, out, is_there, PAIRS, REST, REST_WIDTH)
            copy_rest(key, rows, addressed, out, is_there, PAIRS, REST, REST_WIDTH)


@triton.jit
def rotate_backward_kernel(
    rotated_grad, local_grad, addressed_grad, rotated, addressed,
    cos, sin, address_cos, address_sin, slot, closes, query_grad, key_grad, angle_grad,
    rotated_b, rotated_t, rotated_h, local_b, local_t, local_h, addressed_b, addressed_t, addressed_h,
    query_b, query_t, query_h, key_b, key_t, key_h, cos_b, cos_t, cos_h, length, slots,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAIRS: tl.constexpr, WIDTH: tl.constexpr,
    REST: tl.constexpr, REST_WIDTH: tl.constexpr, INTERLEAVED: tl.constexpr, LOCAL: tl.constexpr, ROWS: tl.constexpr,
    TO_ANGLES: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(1).to(tl.int64)
    lane = tl.arange(0, WIDTH)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    if tl.program_id(2) == 0:
        rotate_queries(
            rotated_grad, rotated_b, rotated_t, rotated_h, query_grad, query_b, query_t, query_h, -1.0,
            cos, sin, address_cos, address_sin, slot, closes, lane, cos_b, cos_t, cos_h, length, slots,
            HEADS, KV_HEADS, DIM, PAIRS, REST, REST_WIDTH, INTERLEAVED, ROWS,
        )  # fmt: skip
    else:
        token, head, is_there = places(tl.program_id(0), length, KV_HEADS, ROWS)
        cosine, sine = local_rotation(cos, sin, batch, token, head, lane, is_there, PAIRS, cos_b, cos_t, cos_h)
        to_cos, to_sin = address_rotation(
            address_cos, address_sin, slot, batch, token, head, lane, is_there, length, slots, KV_HEADS, PAIRS
        )
        local_rows = offsets(batch, token, head, local_b, local_t, local_h)
        there_rows = offsets(batch, token, head, addressed_b, addressed_t, addressed_h)
        out = offsets(batch, token, head, key_b, key_t, key_h)
        there_a, there_b = load_pairs(addressed_grad, there_rows, is_there, lane, PAIRS, INTERLEAVED)
        # Addressed keys are local ones rotated on: their gradient comes back by way of the local ones.
        a, b = rotate_pair(there_a, there_b, to_cos, -to_sin)
        if LOCAL:
            here_a, here_b = load_pairs(local_grad, local_rows, is_there, lane, PAIRS, INTERLEAVED)
            a += here_a
            b += here_b
        a, b = rotate_pair(a, b, cosine, -sine)
        store_pairs(key_grad, out, is_there, lane, a, b, PAIRS, INTERLEAVED)
        if REST:
            lanes = tl.arange(0, REST_WIDTH)
            rest = is_there[:, None] & (lanes < REST)[None, :]
            column = (2 * PAIRS + lanes)[None, :]
            kept = tl.load(addressed_grad + there_rows[:, None] + column, mask=rest, other=0.0).to(tl.float32)
            if LOCAL:
                kept += tl.load(local_grad + local_rows[:, None] + column, mask=rest, other=0.0).to(tl.float32)
            tl.store(key_grad + out[:, None] + column, kept.to(key_grad.dtype.element_ty), mask=rest)
        if TO_ANGLES:
            rows = packed_offsets(batch, token, head, length, KV_HEADS, DIM)
            a, b = load_pairs(addressed, rows, is_there, lane, PAIRS, INTERLEAVED)
            angle = by_angle(there_a, there_b, a, b)
            closing = is_there & (tl.load(closes + batch * length + token) != 0)
            for member in tl.static_range(GROUP):
                reader = head * GROUP + member
                rows = offsets(batch, token, reader, rotated_b, rotated_t, rotated_h)
                grad_a, grad_b = load_pairs(rotated_grad, rows, closing, lane, PAIRS, INTERLEAVED)
                rows = packed_offsets(batch, token, reader, length, HEADS, DIM)
                a, b = load_pairs(rotated, rows, closing, lane, PAIRS, INTERLEAVED)
                angle += by_angle(grad_a, grad_b, a, b)
            place = packed_offsets(batch, token, head, length, KV_HEADS, PAIRS)
            inside = is_there[:, None] & (lane < PAIRS)[None, :]
            tl.store(angle_grad + place[:, None] + lane[None, :], angle, mask=inside)


@triton.jit
def sum_by_unit_kernel(
    by_token, slot, by_slot, length, slots, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr
):
    """The program of a unit's first token sums the unit; that of a number which no unit has writes zeros there."""
    token = tl.program_id(0)
    batch = tl.program_id(2).to(tl.int64)
    lane = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = lane < COLUMNS
    slot += batch * length
    by_slot += lane
    rows = batch * slots
    if (token < slots) & (token > tl.load(slot + length - 1)):
        tl.store(by_slot + (rows + token) * COLUMNS, tl.zeros([WIDTH], tl.float32), mask=inside)
    if token < length:
        own = tl.load(slot + token)
        if (token == 0) | (tl.load(slot + tl.maximum(token - 1, 0)) != own):
            sums = tl.zeros([TOKENS, WIDTH], tl.float32)
            column = token + tl.arange(0, TOKENS)
            more = True
            while more:
                # Loaded before it is known whether they are of the unit: no load waits for another then.
                near = tl.minimum(column, length - 1)
                is_member = (column < length) & (tl.load(slot + near) == own)
                row = (batch * length + near) * COLUMNS
                given = tl.load(by_token + row[:, None] + lane[None, :], mask=inside[None, :], other=0.0)
                sums += tl.where(is_member[:, None], given, 0.0)
                column += TOKENS
                more = tl.sum(is_member.to(tl.int32), 0) == TOKENS
            tl.store(by_slot + (rows + own) * COLUMNS, tl.sum(sums, 0), mask=inside)


# Starting the kernels: each function writes into results that have been allocated.

ROTATIONS = (
    "Tensor cos, Tensor sin, Tensor address_cos, Tensor address_sin, Tensor slot, Tensor closes, "
    "Tensor? near_cos, Tensor? near_sin, Tensor? far_cos, Tensor? far_sin, bool interleaved"
)
"""As operators take them; ``with_local``, if it is theirs to say, follows."""


class Rotations(NamedTuple):
    """How the tokens of a call are rotated: see :class:`contentrope.attention.fused.FusedRotations`."""

    cos: Tensor
    sin: Tensor
    address_cos: Tensor
    address_sin: Tensor
    slot: Tensor
    closes: Tensor
    near_cos: Tensor | None
    near_sin: Tensor | None
    far_cos: Tensor | None
    far_sin: Tensor | None
    interleaved: bool
    with_local: bool
    """Whether local keys are asked for; with a window, near queries and near keys."""

    @property
    def has_window(self) -> bool:
        return self.far_cos is not None

    def addresses(self) -> tuple[Tensor, ...]:
        return tuple(x.contiguous() for x in (self.address_cos, self.address_sin, self.slot))

    def of_window(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Of near queries and keys, and of far queries. Where near ones are not asked for anything will do."""
        assert self.far_cos is not None
        assert self.far_sin is not None
        far = self.far_cos, self.far_sin
        return (far if self.near_cos is None or self.near_sin is None else (self.near_cos, self.near_sin)), far


class Rotated(NamedTuple):
    """What a layer's attention reads, and the gradients of it: (batch, seq, heads or kv_heads, head_dim)."""

    query: Tensor
    """With a window the near one; empty, if near ones are not asked for."""
    local: Tensor
    """Empty, if they are not asked for."""
    addressed: Tensor
    far_query: Tensor
    """Empty without a window."""


def states_for(query: Tensor, key: Tensor, with_local: bool, has_window: bool) -> Rotated:
    """Memory for them."""
    with_query = with_local or not has_window
    return Rotated(
        query.new_empty(query.shape if with_query else (0,)),
        key.new_empty(key.shape if with_local else (0,)),
        key.new_empty(key.shape),
        query.new_empty(query.shape if has_window else (0,)),
    )


def angles_for(addressed: Tensor, cos: Tensor, needs_angles: bool) -> Tensor:
    """Memory for the gradient of the angles of each token's unit; empty, if it is not asked for."""
    batch, length, kv_heads, _ = addressed.shape
    return cos.new_empty(batch if needs_angles else 0, length, kv_heads, cos.shape[-1])


def forward(states: Rotated, query: Tensor, key: Tensor, rotations: Rotations, with_far: bool = True) -> None:
    """Write what :func:`states_for` has made room for; far versions, if anybody reads them."""
    if not query.numel():
        return
    query, key = last_contiguous(query), last_contiguous(key)
    cos, sin, strides = _broadcast((rotations.cos, rotations.sin), key)
    sizes = _sizes(query, key, rotations)
    lengths = query.shape[1], rotations.address_cos.shape[1]
    if not rotations.has_window:
        start(
            rotate_kernel, _grid(query, key, sizes),
            (query, key, cos, sin, *rotations.addresses(), rotations.closes.contiguous(), *states[:3]),
            (*strides_of(query, key), *strides, *lengths), **sizes, LOCAL=rotations.with_local,
        )  # fmt: skip
        return
    (*near, near_strides), (*far, far_strides) = (_broadcast(given, key) for given in rotations.of_window())
    start(
        rotate_window_kernel, _grid(query, key, sizes),
        (query, key, cos, sin, *rotations.addresses(), *near, *far, *states),
        (*strides_of(query, key), *strides, *near_strides, *far_strides, *lengths), **sizes,
        NEAR=rotations.with_local, FAR=with_far,
    )  # fmt: skip


def backward(
    results: tuple[Tensor, Tensor, Tensor], grads: Rotated, states: Rotated, rotations: Rotations, with_far: bool = True
) -> None:
    """Write the gradients of queries, keys and angles, from those of what :func:`forward` gave. Rows, tokens and heads
    of queries and keys may lie there as they like; empty angles are not asked for."""
    if not states.addressed.numel():
        return
    key, query = states.addressed, states.far_query if rotations.has_window else states.query
    # Of what is not asked for nothing is read.
    given = [last_contiguous(grad if grad.ndim == 4 else grads.addressed) for grad in grads]
    cos, sin, strides = _broadcast((rotations.cos, rotations.sin), key)
    sizes = _sizes(query, key, rotations) | {"TO_ANGLES": bool(results[2].numel())}
    lengths = query.shape[1], rotations.address_cos.shape[1]
    if not rotations.has_window:
        start(
            rotate_backward_kernel, _grid(query, key, sizes),
            (*given[:3], query, key, cos, sin, *rotations.addresses(), rotations.closes.contiguous(), *results),
            (*strides_of(*given[:3], *results[:2]), *strides, *lengths), **sizes, LOCAL=rotations.with_local,
        )  # fmt: skip
        return
    (*near, near_strides), (*far, far_strides) = (_broadcast(both, key) for both in rotations.of_window())
    start(
        rotate_window_backward_kernel, _grid(query, key, sizes),
        (*given, key, cos, sin, *rotations.addresses(), *near, *far, *results),
        (*strides_of(*given, *results[:2]), *strides, *near_strides, *far_strides, *lengths), **sizes,
        NEAR=rotations.with_local, FAR=with_far,
    )  # fmt: skip


def _broadcast(rotation: tuple[Tensor, Tensor], key: Tensor) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    return broadcast_strides(*rotation, (*key.shape[:3], rotation[0].shape[3]))


def _sizes(query: Tensor, key: Tensor, rotations: Rotations) -> dict[str, Any]:
    dim, pairs = query.shape[3], rotations.cos.shape[3]
    width, rest = power_of_two(pairs), dim - 2 * pairs
    return {
        "HEADS": query.shape[2],
        "KV_HEADS": key.shape[2],
        "DIM": dim,
        "PAIRS": pairs,
        "WIDTH": width,
        "REST": rest,
        "REST_WIDTH": power_of_two(max(rest, 1)),
        "INTERLEAVED": rotations.interleaved,
        "ROWS": max(1, PAIRS_AT_ONCE // width),
    }


def _grid(query: Tensor, key: Tensor, sizes: dict[str, Any]) -> tuple[int, int, int]:
    batch, length, heads, _ = query.shape
    return programs(length * max(heads, key.shape[2]), sizes["ROWS"]), batch, 2


# Queries and keys as an operator of PyTorch.


def rotations_in(given: Any) -> Rotations:
    """Those among the arguments of an operator; one that does not take ``with_local`` always gives local keys."""
    return Rotations._make(getattr(given, name, True) for name in Rotations._fields)


def _allocate(given: Any) -> tuple[Tensor, ...]:
    return tuple(states_for(given.query, given.key, given.with_local, given.far_cos is not None))


def _rotate(states: tuple[Tensor, ...], given: Any) -> None:
    forward(Rotated(*states), given.query, given.key, rotations_in(given))


def rotated_in(given: Any) -> Rotated:
    """What was rotated, as far as it is kept for a backward operator."""
    return Rotated(given.rotated, given.addressed, given.addressed, given.far_rotated)


def _allocate_gradients(given: Any) -> tuple[Tensor, Tensor, Tensor]:
    query, addressed = given.rotated if given.far_cos is None else given.far_rotated, given.addressed
    angles = angles_for(addressed, given.cos, given.needs_angles)
    return query.new_empty(query.shape), addressed.new_empty(addressed.shape), angles


def _rotate_backward(results: tuple[Tensor, Tensor, Tensor], given: Any) -> None:
    grads = Rotated(given.rotated_grad, given.local_grad, given.addressed_grad, given.far_rotated_grad)
    backward(results, grads, rotated_in(given), rotations_in(given))


rotated_states = Differentiable(
    Operator(
        f"rotated_states(Tensor query, Tensor key, Tensor? angles, {ROTATIONS}, bool with_local)"
        " -> (Tensor rotated, Tensor local, Tensor addressed, Tensor far_rotated)",
        _allocate,
        _rotate,
    ),
    Operator(
        "rotated_states_backward(Tensor rotated_grad, Tensor local_grad, Tensor addressed_grad, "
        f"Tensor far_rotated_grad, Tensor rotated, Tensor addressed, Tensor far_rotated, {ROTATIONS}, bool with_local, "
        "bool needs_angles) -> (Tensor query_grad, Tensor key_grad, Tensor angles_grad)",
        _allocate_gradients,
        _rotate_backward,
    ),
)
""":class:`Rotated`; :class:`Rotations` says how."""


# What the tokens of a unit share: a gradient that reaches an address by way of its tokens is summed over them. Layers
# add theirs token by token; one kernel sums what they have added, unit by unit and always in the same order, so that
# the result is the same every time.


def _share(given: Any) -> Tensor:
    """Zero-stride placeholder; values are never read."""
    return given.angles.new_empty(()).expand(*given.slot.shape, *given.angles.shape[2:])


def _allocate_sums(given: Any) -> Tensor:
    by_token = given.by_token_grad
    return by_token.new_empty(by_token.shape[0], given.slots, *by_token.shape[2:])


def _sum(by_slot: Tensor, given: Any) -> None:
    by_token, slots = given.by_token_grad, given.slots
    length, columns = by_token.shape[1], by_token.shape[2] * by_token.shape[3]
    if not length:
        by_slot.zero_()
        return
    width = min(COLUMNS_AT_ONCE, power_of_two(columns))
    start(
        sum_by_unit_kernel, (max(length, slots), programs(columns, width), len(by_token)),
        (by_token.contiguous(), given.slot, by_slot), (length, slots),
        COLUMNS=columns, WIDTH=width, TOKENS=TOKENS_AT_ONCE,
    )  # fmt: skip


shared_angles = Differentiable(
    Operator("shared_angles(Tensor angles, Tensor slot, SymInt slots) -> Tensor by_token", _share, lambda *_: None),
    Operator(
        "shared_angles_backward(Tensor by_token_grad, Tensor slot, SymInt slots) -> Tensor angles_grad",
        _allocate_sums,
        _sum,
    ),
)
"""Of (batch, slots, kv_heads, pairs) angles, the slots of all tokens, int32, counted without gaps from 0 on, and how
many slots there are: (batch, seq, kv_heads, pairs), to which a gradient can be given, and which has no numbers."""
