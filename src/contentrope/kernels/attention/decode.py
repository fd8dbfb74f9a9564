"""Attention of a single token, split over the columns of the cache (flash-decoding): as fast as the cache can be read.

A program reads some columns of one key head for all query heads that share it. Near and far queries are rows of one
product, the near ones first; a row does not see the columns that are the other query's. So every key is read once, no
tile is a special case, and tensor cores, which take sixteen rows at the least, have the second query for nothing. What
both rows of a head found is added up at the end, where competition takes its share from the far ones.

With few rows and heads a GPU has more SMs than there are key heads, so columns are split over programs, and a second
kernel adds up what they found. Logarithms are to base two, as in :mod:`contentrope.kernels.attention.kernels`.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from contentrope.kernels.attention.tiles import LOG2_E, absorb, rows_of
from contentrope.kernels.ops import (
    Operator,
    as_bytes,
    last_contiguous,
    power_of_two,
    programs,
    start,
    strides_of,
    unless_watched,
)
from contentrope.rotary import Rotation

PER_SM = 4
"""Programs that an SM takes at once: as many as there is work for, and no second wave."""
MOST_SPLITS = 128
"""What the second kernel adds up in one go."""
SHORTEST = 128
"""Columns of a program, at least: fewer take no less time than starting it."""
PART_WIDTH = 32
"""Dimensions of a program of the second kernel."""
INTERPRETED_SMS = 4


@triton.jit
def head_rows(base, head, is_asked, width: tl.constexpr, stride, WIDTH: tl.constexpr):
    """Rows of the heads that are asked for, zero for all others."""
    place = tl.arange(0, WIDTH)
    mask = is_asked[:, None] & (place < width)[None, :]
    return tl.load(base + head[:, None].to(tl.int64) * stride + place[None, :], mask=mask, other=0.0)


@triton.jit
def read_share(
    rows, is_far, new_key, new_value, key, value, first_near, taken, memory, hidden, out, lse, part,
    key_t, value_t, taken_h, head, first, beyond, known, splits, scale,
    GROUP: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr, HAS_NEW: tl.constexpr,
    HAS_TAKEN: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_HIDDEN: tl.constexpr, PRECISION: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    """What the queries of one key head, ``rows``, find from column ``first`` to before ``beyond``. ``known`` columns
    lie in the cache; the one behind them is ``new``."""
    accumulated = tl.zeros([2 * HALF, WIDTH], tl.float32)
    total = tl.zeros([2 * HALF], tl.float32)
    largest = tl.full([2 * HALF], float("-inf"), tl.float32)
    written = tl.minimum(beyond, known)
    for tile in range(first, beyond, N):
        column = tile + tl.arange(0, N)
        keys = rows_of(key, column, DIM, key_t, written, WIDTH)
        values = rows_of(value, column, DIM, value_t, written, WIDTH)
        if HAS_NEW:
            is_new = (column == known)[:, None]
            keys = tl.where(is_new, new_key[None, :], keys)
            values = tl.where(is_new, new_value[None, :], values)
        scores = tl.dot(rows, tl.trans(keys), input_precision=PRECISION, out_dtype=tl.float32)
        read_far, is_seen = column < first_near, column < beyond
        if HAS_MEMORY:
            read_far = read_far | (tl.load(memory + column, mask=is_seen, other=0) != 0)
        if HAS_HIDDEN:
            is_seen = is_seen & (tl.load(hidden + column, mask=is_seen, other=1) == 0)
        reads = (read_far[None, :] == is_far[:, None]) & is_seen[None, :]
        scores = tl.where(reads, scores * (scale * LOG2_E), float("-inf"))
        accumulated, total, largest = absorb(scores, values, accumulated, total, largest, 1.0, PRECISION)
    if HAS_TAKEN:
        exists = tl.arange(0, 2 * HALF) % HALF < GROUP
        weight = tl.load(taken + head * taken_h, mask=exists & is_far, other=0.0)
        largest -= weight.to(tl.float32) * LOG2_E

    by_kind = tl.reshape(largest, (2, HALF))
    top = tl.max(by_kind, 0)
    # A head that has seen nothing has no largest score; zero keeps the differences finite or -inf.
    reference = tl.where(top == float("-inf"), 0.0, top)
    fade = tl.exp2(by_kind - reference[None, :])
    both = tl.sum(tl.reshape(total, (2, HALF)) * fade, 0)
    found = tl.sum(tl.reshape(accumulated, (2, HALF, WIDTH)) * fade[:, :, None], 0)
    counted = tl.where(both > 0, both, 1.0)
    found = found / counted[:, None]
    member, place = tl.arange(0, HALF), tl.arange(0, WIDTH)
    at = part + member * splits
    inside = (member < GROUP)[:, None] & (place < DIM)[None, :]
    tl.store(out + at[:, None] * DIM + place[None, :], found.to(out.dtype.element_ty), mask=inside)
    logarithm = tl.where(both > 0, reference + tl.log2(counted), float("-inf"))
    tl.store(lse + at, logarithm, mask=member < GROUP)


@triton.jit(do_not_specialize=["columns", "share", "splits"])
def read_kernel(
    query, far_query, key, value, begin, taken, memory, hidden, out, lse,
    query_b, query_h, far_b, far_h, key_b, key_h, key_t, value_b, value_h, value_t,
    begin_b, taken_b, taken_h, memory_b, hidden_b, columns, share, splits, scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr,
    HAS_TAKEN: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_HIDDEN: tl.constexpr, PRECISION: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    """``share`` columns of one key head: (rows, heads, splits, DIM), their share of the softmax, and its logarithm."""
    batch = (tl.program_id(0) // KV_HEADS).to(tl.int64)
    kv_head = tl.program_id(0) % KV_HEADS
    first = tl.program_id(1) * share
    row = tl.arange(0, 2 * HALF)
    is_far, exists = row >= HALF, row % HALF < GROUP
    head = kv_head * GROUP + row % HALF
    near_rows = head_rows(query + batch * query_b, head, exists & (row < HALF), DIM, query_h, WIDTH)
    far_rows = head_rows(far_query + batch * far_b, head, exists & is_far, DIM, far_h, WIDTH)
    nothing = tl.zeros([WIDTH], tl.float32)
    read_share(
        tl.where(is_far[:, None], far_rows, near_rows), is_far, nothing, nothing,
        key + batch * key_b + kv_head.to(tl.int64) * key_h, value + batch * value_b + kv_head.to(tl.int64) * value_h,
        tl.load(begin + batch * begin_b), taken + batch * taken_b, memory + batch * memory_b,
        hidden + batch * hidden_b, out, lse,
        (batch * KV_HEADS * GROUP + kv_head * GROUP) * splits + tl.program_id(1),
        key_t, value_t, taken_h, head, first, tl.minimum(first + share, columns), columns, splits, scale,
        GROUP, DIM, WIDTH, HALF, False, HAS_TAKEN, HAS_MEMORY, HAS_HIDDEN, PRECISION, N,
    )  # fmt: skip


@triton.jit
def rotation_rows(cos, sin, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr, WIDTH: tl.constexpr):
    """For every dimension its cosine, its sine with a sign, and the dimension it is paired with; those that belong to
    no pair are left as they are."""
    place = tl.arange(0, WIDTH)
    is_second = place >= PAIRS
    pair = place % PAIRS
    partner = tl.where(is_second, place - PAIRS, place + PAIRS)
    if INTERLEAVED:
        is_second = place % 2 == 1
        pair = place // 2
        partner = place + 1 - 2 * (place % 2)
    rotates = place < 2 * PAIRS
    by_cos = tl.load(cos + pair, mask=rotates, other=1.0).to(tl.float32)
    by_sin = tl.load(sin + pair, mask=rotates, other=0.0).to(tl.float32)
    return by_cos, tl.where(is_second, by_sin, -by_sin), tl.where(rotates, partner, place)


@triton.jit(do_not_specialize=["columns", "share", "splits"])
def next_kernel(
    qkv, near_cos, near_sin, far_cos, far_sin, key, value, begin, taken, memory, hidden, out, lse,
    qkv_b, qkv_h, near_b, near_h, far_b, far_h, key_b, key_h, key_t, value_b, value_h, value_t,
    begin_b, taken_b, taken_h, memory_b, hidden_b, columns, share, splits, scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr,
    DIM: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr,
    HAS_TAKEN: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_HIDDEN: tl.constexpr, PRECISION: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    """The same for a token whose query, key and value lie side by side as one projection gave them: rotated here. The
    program that reads the last column writes the key and the value there."""
    batch = (tl.program_id(0) // KV_HEADS).to(tl.int64)
    kv_head = tl.program_id(0) % KV_HEADS
    first = tl.program_id(1) * share
    beyond = tl.minimum(first + share, columns)
    row, place = tl.arange(0, 2 * HALF), tl.arange(0, WIDTH)
    is_far, exists = row >= HALF, row % HALF < GROUP
    head = kv_head * GROUP + row % HALF
    qkv += batch * qkv_b
    of_near, of_far = batch * near_b + kv_head * near_h, batch * far_b + kv_head * far_h
    by_cos, by_sin, partner = rotation_rows(near_cos + of_near, near_sin + of_near, PAIRS, INTERLEAVED, WIDTH)
    far_by_cos, far_by_sin, _ = rotation_rows(far_cos + of_far, far_sin + of_far, PAIRS, INTERLEAVED, WIDTH)

    inside = place < DIM
    asked = exists[:, None] & inside[None, :]
    at = qkv + head[:, None] * qkv_h
    given = tl.load(at + place[None, :], mask=asked, other=0.0)
    paired = tl.load(at + partner[None, :], mask=asked, other=0.0)
    rows = given * tl.where(is_far[:, None], far_by_cos[None, :], by_cos[None, :])
    rows += paired * tl.where(is_far[:, None], far_by_sin[None, :], by_sin[None, :])

    at = qkv + (KV_HEADS * GROUP + kv_head) * qkv_h
    new_key = tl.load(at + place, mask=inside, other=0.0) * by_cos
    new_key += tl.load(at + partner, mask=inside, other=0.0) * by_sin
    new_key = new_key.to(key.dtype.element_ty)
    new_value = tl.load(at + KV_HEADS * qkv_h + place, mask=inside, other=0.0).to(value.dtype.element_ty)
    key += batch * key_b + kv_head.to(tl.int64) * key_h
    value += batch * value_b + kv_head.to(tl.int64) * value_h
    last = (columns - 1).to(tl.int64)
    is_last = inside & (beyond == columns)
    tl.store(key + last * key_t + place, new_key, mask=is_last)
    tl.store(value + last * value_t + place, new_value, mask=is_last)
    read_share(
        rows.to(key.dtype.element_ty), is_far, new_key, new_value, key, value,
        tl.load(begin + batch * begin_b), taken + batch * taken_b, memory + batch * memory_b,
        hidden + batch * hidden_b, out, lse,
        (batch * KV_HEADS * GROUP + kv_head * GROUP) * splits + tl.program_id(1),
        key_t, value_t, taken_h, head, first, beyond, columns - 1, splits, scale,
        GROUP, DIM, WIDTH, HALF, True, HAS_TAKEN, HAS_MEMORY, HAS_HIDDEN, PRECISION, N,
    )  # fmt: skip


@triton.jit(do_not_specialize=["splits"])
def add_kernel(part, lse, out, splits, DIM: tl.constexpr, WIDTH: tl.constexpr, MOST: tl.constexpr):
    """What all splits of one head found, some of its dimensions."""
    head = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    split = tl.arange(0, MOST)
    exists = split < splits
    by_split = tl.load(lse + head * splits + split, mask=exists, other=float("-inf"))
    top = tl.max(by_split, 0)
    weight = tl.exp2(by_split - tl.where(top == float("-inf"), 0.0, top))
    total = tl.sum(weight, 0)
    inside = exists[:, None] & (place < DIM)[None, :]
    parts = tl.load(part + (head * splits + split)[:, None] * DIM + place[None, :], mask=inside, other=0.0)
    found = tl.sum(parts * weight[:, None], 0) / tl.where(total > 0, total, 1.0)
    tl.store(out + head * DIM + place, found.to(out.dtype.element_ty), mask=place < DIM)


class Tile(NamedTuple):
    columns: int
    warps: int
    stages: int


def tile_of(width: int, precision: str) -> Tile:
    """Small enough for :data:`PER_SM` of them. Products in full float32 are written out, for which four warps have too
    few registers.

    >>> tile_of(64, "tf32")
    Tile(columns=64, warps=4, stages=3)
    """
    if precision == "ieee":
        return Tile(32, 8, 2)
    return Tile(64, 4, 3) if width <= 64 else Tile(32, 4, 3 if width <= 128 else 2)


class Split(NamedTuple):
    share: int
    """Columns of a program: a multiple of its tile, but for the last."""
    programs: int


def split_of(columns: int, key_heads: int, sms: int, tile: int) -> Split:
    """How columns are split over programs; ``key_heads`` are those of all rows.

    >>> [tuple(split_of(*sizes, 132, 64)) for sizes in ((4096, 12), (65536, 4), (200, 1), (9, 999))]
    [(128, 32), (512, 128), (128, 2), (64, 1)]
    """
    wanted = min(max(PER_SM * sms // key_heads, 1), MOST_SPLITS, programs(columns, SHORTEST))
    share = programs(programs(columns, wanted), tile) * tile
    return Split(share, programs(columns, share))


@functools.cache
def _sms(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else INTERPRETED_SMS


def _read(kernel: Any, states: tuple[Tensor, ...], strides: tuple[int, ...], given: Any, **more: Any) -> Tensor:
    """Start the kernel for ``states``, of which the last two are keys and values; add up what its programs found."""
    out, (key, value) = given.out, states[-2:]
    batch, heads, _, dim = out.shape
    kv_heads, columns = key.shape[1:3]
    exact = out.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    width, precision = max(16, power_of_two(dim)), "ieee" if exact else "tf32"
    tile = tile_of(width, precision)
    share, splits = split_of(columns, batch * kv_heads, _sms(out.device), tile.columns)
    parts = out if splits == 1 else out.new_empty(batch, heads, splits, dim, dtype=torch.float32)
    lse = out.new_empty(batch, heads, splits, dtype=torch.float32)
    marks, mark_strides = _marks(given)
    start(
        kernel, (batch * kv_heads, splits), (*states, *marks, parts, lse),
        (*strides, *strides_of(key, value), *mark_strides, columns, share, splits, given.scale),
        KV_HEADS=kv_heads, GROUP=heads // kv_heads, HALF=max(8, power_of_two(heads // kv_heads)),
        DIM=dim, WIDTH=width, PRECISION=precision,
        HAS_TAKEN=given.taken is not None, HAS_MEMORY=given.key_memory is not None,
        HAS_HIDDEN=given.hidden is not None, N=tile.columns, num_warps=tile.warps, num_stages=tile.stages, **more,
    )  # fmt: skip
    if splits > 1:
        start(
            add_kernel, (batch * heads, programs(dim, PART_WIDTH)), (parts, lse, out), (splits,),
            DIM=dim, WIDTH=PART_WIDTH, MOST=MOST_SPLITS, num_warps=4,
        )  # fmt: skip
    return out


class _Given(NamedTuple):
    """What both kernels are given."""

    out: Tensor
    begin: Tensor
    taken: Tensor | None
    key_memory: Tensor | None
    hidden: Tensor | None
    scale: float


def _marks(given: _Given) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Begin, taken, memory keys, hidden columns, and their strides. Where there is nothing to point to, anything will
    do: it is never read."""
    batch, heads = given.out.shape[:2]
    begin = given.begin.expand(batch, 1)
    taken = begin if given.taken is None else given.taken.expand(batch, heads, 1)
    flags = [
        begin if x is None else as_bytes(last_contiguous(x.expand(batch, -1))) for x in (given.key_memory, given.hidden)
    ]
    strides = begin.stride(0), *taken.stride()[:2], *(x.stride(0) for x in flags)
    return (begin, taken, *flags), strides


def _allocate(given: Any) -> Tensor:
    return given.query.new_empty(given.query.shape)


def _attend(out: Tensor, given: Any) -> None:
    if not out.numel():
        return
    query, far_query, *_ = states = tuple(map(last_contiguous, given[:4]))
    marks = _Given(out, given.begin, given.taken, given.key_memory, given.hidden, given.scale)
    _read(read_kernel, states, (*query.stride()[:2], *far_query.stride()[:2]), marks)


_operator = Operator(
    "attend_one(Tensor query, Tensor far_query, Tensor key, Tensor value, Tensor begin, Tensor? taken, "
    "Tensor? key_memory, Tensor? hidden, float scale) -> Tensor",
    _allocate,
    _attend,
)
attend_one = unless_watched(_operator.run, _operator.known)
"""As :func:`contentrope.attention.decode.attend_one`, which says what the arguments are; without a gradient."""


def attend_next(
    qkv: Tensor,
    near: Rotation,
    far: Rotation,
    key: Tensor,
    value: Tensor,
    begin: Tensor,
    taken: Tensor | None,
    key_memory: Tensor | None,
    hidden: Tensor | None,
    scale: float,
    interleaved: bool,
) -> Tensor:
    """As :func:`contentrope.attention.decode.attend_next`, which says what the arguments are."""
    batch, _, all_heads, dim = qkv.shape
    out = qkv.new_empty(batch, all_heads - 2 * key.shape[1], 1, dim)
    if not out.numel():
        return out
    qkv = last_contiguous(qkv)
    rotations = [x.contiguous().expand(batch, 1, -1, -1) for x in (*near[:2], *far[:2])]
    strides = [step for x in (rotations[0], rotations[2]) for step in (x.stride(0), x.stride(2) * (x.shape[2] > 1))]
    marks = _Given(out, begin, taken, key_memory, hidden, scale)
    return _read(
        next_kernel, (qkv, *rotations, key, value), (qkv.stride(0), qkv.stride(2), *strides), marks,
        PAIRS=near.cos.shape[-1], INTERLEAVED=interleaved,
    )  # fmt: skip
