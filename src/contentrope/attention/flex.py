"""Addressed attention through FlexAttention: one call over the addressed keys followed by the local ones.

With a near window every query has two versions. They lie side by side as one of twice the width, and so do the keys,
zeros beside each: a product sees the query in the version that reads the key.

The block mask is written down from the unit starts, one pass over the query blocks; no pair is evaluated for it.
All tensors of a rule have fixed shapes, so one compilation serves every placing of the boundaries.

Shapes: doubled counts both key versions, filled up to whole blocks; columns is half of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from contentrope.attention.pairs import Exponent, PairRule, Queries, States, no_competition, silence_padding

BLOCK = 128


def attend(states: States, rule: PairRule, *, competition: Exponent, dropout: float, scale: float) -> Queries:
    query, local_key, addressed_key, value, far_query = states
    kernel: Any = flex_attention if torch.compiler.is_compiling() else _compiled_kernel()
    layout = rule.memo.get("flex")
    if layout is None:
        layout = rule.memo["flex"] = layout_of(rule)
    if far_query is not None:
        query = torch.cat((query, far_query), dim=-1)
        zeros = torch.zeros_like(local_key)
        local_key, addressed_key = torch.cat((local_key, zeros), dim=-1), torch.cat((zeros, addressed_key), dim=-1)
    out = kernel(
        query,
        _doubled(addressed_key, local_key),
        _doubled(value, value),
        score_mod=_own_unit_bonus(layout, rule, competition, query),
        block_mask=block_mask(layout, rule),
        scale=scale,
        enable_gqa=query.shape[1] != local_key.shape[1],
    )
    return silence_padding(out, rule)


class Layout(NamedTuple):
    """Block lists for queries and for keys, and the facts of the rule that the kernel looks up."""

    partial_count: Int[Tensor, "batch 1 blocks"]
    partial: Int[Tensor, "batch 1 blocks doubled"]
    full_count: Int[Tensor, "batch 1 blocks"]
    full: Int[Tensor, "batch 1 blocks doubled"]
    by_key_count: Int[Tensor, "batch 1 doubled"]
    by_key: Int[Tensor, "batch 1 doubled blocks"]
    full_by_key_count: Int[Tensor, "batch 1 doubled"]
    full_by_key: Int[Tensor, "batch 1 doubled blocks"]
    start: Int[Tensor, "batch queries"]
    near_from: Int[Tensor, "batch queries"]
    """The column where the query's window begins; without a window, its unit."""
    closes: Bool[Tensor, "batch queries"]
    memory: Bool[Tensor, "batch padded"]
    valid: Bool[Tensor, "batch padded"]


@torch.library.custom_op(
    "contentrope::block_layout",
    mutates_args=(),
    schema="(Tensor start, Tensor near_from, Tensor closes, Tensor? memory, Tensor? valid) -> Tensor[]",
)
def block_layout(
    start: Tensor, near_from: Tensor, closes: Tensor, memory: Tensor | None, valid: Tensor | None
) -> list[Tensor]:
    """A :class:`Layout` from the starts of units and windows alone: no pair of tokens is looked at.

    Query block i reads addressed blocks 0..i, and local blocks from its leftmost ``near_from`` to i. Addressed blocks
    wholly left of that are full: every pair in them is visible, unless padding or memory units hide some.

    An operator of its own, because the compiler may otherwise fold the block lists into strided views, which the
    attention kernel reads out of bounds.
    """
    batch, queries = start.shape
    blocks = -(-queries // BLOCK)
    columns = blocks * BLOCK
    padded_from = F.pad(near_from, (0, columns - queries), value=columns)
    diagonal = torch.arange(blocks, device=start.device).expand(batch, -1)
    leftmost = torch.minimum(padded_from.view(batch, blocks, BLOCK).amin(-1) // BLOCK, diagonal)
    full_count = leftmost if memory is None and valid is None else torch.zeros_like(leftmost)
    addressed_count, local_count = diagonal - full_count + 1, diagonal - leftmost + 1
    slot = torch.arange(2 * blocks, device=start.device)
    # Slots list the addressed partial blocks first, then the local ones; what follows the count is not read.
    partial = torch.where(
        slot < addressed_count[..., None],
        full_count[..., None] + slot,
        blocks + leftmost[..., None] + slot - addressed_count[..., None],
    ).clamp(max=2 * blocks - 1)
    partial_count = addressed_count + local_count
    full = slot.expand_as(partial)
    lists = (partial_count, partial, full_count, full, *_by_key(partial_count, partial), *_by_key(full_count, full))
    seen = torch.ones_like(closes) if valid is None else valid
    marked = torch.zeros_like(closes) if memory is None else memory
    facts = (start, near_from, closes, *(F.pad(x, (0, columns - queries)) for x in (marked, seen)))
    # Fresh memory for each: an operator may not hand its inputs back, and the kernel wants whole tensors.
    return [*(x[:, None].int().contiguous() for x in lists), *(x.clone() for x in facts)]


def _by_key(count: Int[Tensor, "batch blocks"], blocks: Int[Tensor, "batch blocks doubled"]) -> tuple[Tensor, Tensor]:
    """The same lists the other way round: for each key block, how many query blocks read it, and which."""
    is_listed = torch.arange(blocks.shape[-1], device=blocks.device) < count[..., None]
    reads = torch.zeros_like(blocks).scatter_add(-1, blocks, is_listed.long()).transpose(1, 2)
    return reads.sum(-1), reads.argsort(dim=-1, descending=True, stable=True)


@block_layout.register_fake
def _(start: Tensor, near_from: Tensor, closes: Tensor, memory: Tensor | None, valid: Tensor | None) -> list[Tensor]:
    batch, queries = start.shape
    blocks = -(-queries // BLOCK)
    sizes = [(1, blocks), (1, blocks, 2 * blocks)] * 2 + [(1, 2 * blocks), (1, 2 * blocks, blocks)] * 2
    lists = [start.new_empty((batch, *size), dtype=torch.int32) for size in sizes]
    facts = [torch.empty_like(x) for x in (start, near_from, closes)]
    return [*lists, *facts, *(closes.new_empty(batch, blocks * BLOCK) for _ in range(2))]


def layout_of(rule: PairRule) -> Layout:
    return Layout(*block_layout(rule.start, rule.near_from, rule.closes, rule.query_memory, rule.key_valid))


def block_mask(layout: Layout, rule: PairRule) -> BlockMask:
    """Addressed columns are key blocks 0.., the local ones follow."""
    queries, columns = rule.query_count, layout.valid.shape[1]
    return BlockMask(
        seq_lengths=(queries, 2 * columns),
        kv_num_blocks=layout.partial_count,
        kv_indices=layout.partial,
        full_kv_num_blocks=layout.full_count,
        full_kv_indices=layout.full,
        q_num_blocks=layout.by_key_count,
        q_indices=layout.by_key,
        full_q_num_blocks=layout.full_by_key_count,
        full_q_indices=layout.full_by_key,
        BLOCK_SIZE=(BLOCK, BLOCK),
        mask_mod=_visible(layout, rule),
    )


def _visible(layout: Layout, rule: PairRule) -> Callable[..., Tensor]:
    """The pair rule over doubled keys: column c < columns is the addressed key c, else the local key c - columns."""
    *_, start, near_from, closes, memory, valid = layout
    columns = valid.shape[1]
    has_memory, padded, has_window = rule.query_memory is not None, rule.key_valid is not None, rule.near is not None

    def visible(batch: Tensor, head: Tensor, query: Tensor, doubled: Tensor) -> Tensor:
        is_local = doubled >= columns
        key = torch.where(is_local, doubled - columns, doubled)
        own_unit = key >= start[batch, query]
        if has_window:
            reads_local = key >= near_from[batch, query]
            if has_memory:
                reads_local = reads_local & (own_unit | ~memory[batch, key])
        else:
            reads_local = own_unit & ~closes[batch, query]
        seen = torch.where(is_local, reads_local, ~reads_local) & (key <= query)
        if has_memory:
            seen = seen & (own_unit | ~memory[batch, query])
        if padded:
            seen = seen & valid[batch, key]
        return seen

    return visible


def _own_unit_bonus(
    layout: Layout, rule: PairRule, competition: Exponent, query: Tensor
) -> Callable[..., Tensor] | None:
    if no_competition(competition):
        return None
    batch, heads = query.shape[:2]
    bonus = rule.own_unit_bonus(competition, torch.float32).expand(batch, heads, -1).contiguous()
    start, columns, has_window = layout.start, layout.valid.shape[1], rule.near is not None

    def add_bonus(score: Tensor, b: Tensor, h: Tensor, q: Tensor, doubled: Tensor) -> Tensor:
        is_local = doubled >= columns
        key = torch.where(is_local, doubled - columns, doubled)
        return score + torch.where(is_local if has_window else key >= start[b, q], bonus[b, h, q], 0.0)

    return add_bonus


def _doubled(first: Tensor, second: Tensor) -> Tensor:
    """Both key versions one after the other, each filled up to whole blocks."""
    missing = -first.shape[2] % BLOCK
    if not missing:
        return torch.cat((first, second), dim=2)
    filling = first.new_zeros(*first.shape[:2], missing, first.shape[3])
    return torch.cat((first, filling, second, filling), dim=2)


@functools.cache
def _compiled_kernel() -> Callable[..., Any]:
    """For eager code: compiled on first use, once for all boundaries. (A compiled model inlines the plain function.)"""
    return torch.compile(flex_attention, dynamic=False)
