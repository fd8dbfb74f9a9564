"""Addressed attention in one kernel, forward and backward, as fast as plain attention (Triton, CUDA).

Keys left of the units of a tile of queries are read addressed and unmasked, as plain attention reads them; only between
there and the diagonal are both versions of the keys needed. Keys further left than any unit is long can be left to a
library's plain attention, whose result the kernels go on from. Nothing of size tokens x tokens is written, and nothing
is prepared but the column where each unit begins. The kernels are in ``contentrope.kernels.attention``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from contentrope.attention.pairs import Exponent, PairRule, Queries, States, no_competition, silence_padding
from contentrope.config import PairLayout
from contentrope.kernels.ops import as_bytes, is_interpreted
from contentrope.rotary import Rotation

Heads = Float[Tensor, "batch seq heads head_dim"]
KeyHeads = Float[Tensor, "batch seq kv_heads head_dim"]


class FusedRotations(NamedTuple):
    """How the tokens of a call are rotated, the same in all layers. Slots are the units that the call touches."""

    cos: Float[Tensor, "rows seq places pairs"]
    sin: Float[Tensor, "rows seq places pairs"]
    """Of the local positions; one row, or one head, may stand for all. With a window, of addressed keys only."""
    address_cos: Float[Tensor, "batch slots kv_heads pairs"]
    address_sin: Float[Tensor, "batch slots kv_heads pairs"]
    slot: Int[Tensor, "batch seq"]
    closes: Bool[Tensor, "batch seq"]
    angles: Float[Tensor, "batch seq kv_heads pairs"] | None
    """Of each token's unit: what the gradient goes to; not to be read. None: it goes nowhere."""
    addresses_only: bool = False
    """Queries and keys are at their local positions already; with a window, at those where near ones are read."""
    near: Rotation | None = None
    """With a window: of near queries and near keys. None: see ``addresses_only``."""
    far_query: Rotation | None = None
    """With a window: of queries that read addressed keys. None: there is no window."""

    def of(self, query: Heads, key: KeyHeads, layout: PairLayout) -> tuple[Heads, KeyHeads, KeyHeads]:
        """Queries (rotated by their unit's address where they close it), local keys, addressed keys."""
        rotated, local, addressed, _ = self._rotated(query, key, layout)
        return rotated, key if self.addresses_only else local, addressed

    def of_window(self, query: Heads, key: KeyHeads, layout: PairLayout) -> tuple[Heads, KeyHeads, KeyHeads, Heads]:
        """Near queries, near keys, addressed keys, far queries."""
        near_query, near_key, addressed, far_query = self._rotated(query, key, layout)
        near = (query, key) if self.addresses_only else (near_query, near_key)
        return *near, addressed, far_query

    def versions_of(self, query: Heads, key: KeyHeads, layout: PairLayout) -> tuple[Tensor, ...]:
        """Of whichever of the two there is."""
        return (self.of if self.far_query is None else self.of_window)(query, key, layout)

    def _rotated(self, query: Heads, key: KeyHeads, layout: PairLayout) -> tuple[Tensor, ...]:
        from contentrope.kernels.rotary import rotated_states  # triton is needed only here

        given = self.tensors()
        return rotated_states(query, key, self.angles, *given, layout == "interleaved", not self.addresses_only)

    def tensors(self) -> tuple[Tensor | None, ...]:
        """As operators take them."""
        near, far_query = ((None, None) if x is None else x[:2] for x in (self.near, self.far_query))
        return *self[:6], *near, *far_query


def rotations_of(
    local: Rotation,
    angles: Float[Tensor, "batch slots kv_heads pairs"],
    slot: Int[Tensor, "batch seq"],
    closes: Bool[Tensor, "batch seq"],
    *,
    near: Rotation | None = None,
    far_query: Rotation | None = None,
) -> FusedRotations:
    """``angles`` are the addresses of the slots, which are counted without gaps from 0 on. With a window, ``near`` is
    the rotation of near queries and keys, ``far_query`` that of queries that read addressed keys."""
    fixed, by_token, slot = angles.detach(), None, slot.int().contiguous()
    if torch.is_grad_enabled() and angles.requires_grad:
        from contentrope.kernels.rotary import shared_angles  # triton is needed only here

        by_token = shared_angles(angles, slot, angles.shape[1])
    facts = fixed.cos(), fixed.sin(), slot, as_bytes(closes)
    return FusedRotations(local.cos, local.sin, *facts, by_token, near=near, far_query=far_query)


def address_rotations(
    angles: Float[Tensor, "batch seq kv_heads pairs"],
    closes: Bool[Tensor, "batch seq"],
    *,
    far_key: Rotation | None = None,
    far_query: Rotation | None = None,
) -> FusedRotations:
    """For queries and keys that are at their local positions already; ``angles`` are those of each token's unit.

    With a window they are where near ones are read: ``far_key`` and ``far_query`` rotate from there on, keys to their
    local positions, before the address, and queries to where they read addressed keys from."""
    fixed = angles.detach()
    if far_key is None:
        one = fixed.new_ones(1, 1, 1, fixed.shape[-1])
        far_key = Rotation(one, torch.zeros_like(one))
    token = torch.arange(angles.shape[1], dtype=torch.int32, device=angles.device).expand(angles.shape[:2])
    learned = angles if torch.is_grad_enabled() and angles.requires_grad else None
    facts = fixed.cos(), fixed.sin(), token.contiguous(), as_bytes(closes)
    return FusedRotations(far_key.cos, far_key.sin, *facts, learned, addresses_only=True, far_query=far_query)


def attend(states: States, rule: PairRule, *, competition: Exponent, dropout: float, scale: float) -> Queries:
    from contentrope.kernels.attention import ops  # triton is needed only here

    pairs = _pairs(rule, competition, states.query.shape[1])
    out, _ = ops.attention(*states, *pairs, scale, _longest(rule), rule.window)
    return silence_padding(out, rule)


def attend_packed(
    qkv: Float[Tensor, "batch queries all_heads head_dim"],
    kv_heads: int,
    rotations: FusedRotations,
    layout: PairLayout,
    rule: PairRule,
    *,
    competition: Exponent = 0.0,
    scale: float,
) -> Queries:
    """:func:`attend` of queries, keys and values that one projection gave side by side, rotated here.

    Their gradient is one tensor too. Parts of it from several operators would have to be copied together.
    """
    from contentrope.kernels.attention import ops

    rotated = rotations.angles, *rotations.tensors(), layout == "interleaved"
    pairs = _pairs(rule, competition, qkv.shape[2] - 2 * kv_heads)
    out, *_ = ops.packed_attention(qkv, *rotated, *pairs, kv_heads, scale, _longest(rule), rule.window)
    return silence_padding(out, rule)


def _pairs(rule: PairRule, competition: Exponent, heads: int) -> tuple[Tensor | None, ...]:
    """:class:`contentrope.kernels.attention.ops.Pairs` of a rule; the last, what is added to the scores of the own
    unit, may differ from layer to layer."""
    bonus = None if no_competition(competition) else _bonus(rule, competition, heads)
    pairs = rule.memo.get("fused")
    if pairs is None:
        pairs = rule.memo["fused"] = _shared_pairs(rule)
    return *pairs, bonus


def _bonus(rule: PairRule, competition: Exponent, heads: int) -> Float[Tensor, "batch heads queries"]:
    """A fixed exponent gives the same in all layers."""
    key, is_fixed = ("bonus", competition, heads), not isinstance(competition, Tensor)
    bonus = rule.memo.get(key) if is_fixed else None
    if bonus is None:
        bonus = rule.own_unit_bonus(competition, torch.float32).expand(len(rule.start), heads, -1).contiguous()
    if is_fixed:
        rule.memo[key] = bonus
    return bonus


def _longest(rule: PairRule) -> int | None:
    """How far to the left of its window a query may read local keys; None: not known, or not all further keys are
    seen."""
    sees_all_far_keys = rule.query_valid is None and rule.query_memory is None
    window_known = rule.near is None or rule.window > 0
    return rule.longest if sees_all_far_keys and window_known else None


def _shared_pairs(rule: PairRule) -> tuple[Tensor | None, ...]:
    """Starts, the least column of the band from each query on, from which query on a key is left of all bands, from
    where on keys are read local, tokens that are not padding, memory queries."""
    start = left = rule.start.int().contiguous()
    if rule.near is None:
        # A query that closes its unit reads nothing local.
        local_start = start.masked_fill(rule.closes, rule.query_count)
    else:
        local_start = left = rule.near.begin.int().contiguous()
    # Padding begins where it stands, which may be right of an open unit's start; a memory unit has no window.
    if rule.query_valid is not None or (rule.near is not None and rule.query_memory is not None):
        left = left.flip(1).cummin(1).values.flip(1).contiguous()
    flags = (None if flag is None else as_bytes(flag).contiguous() for flag in (rule.key_valid, rule.query_memory))
    columns = torch.arange(rule.key_count, dtype=torch.int32, device=left.device).expand_as(left).contiguous()
    until = torch.searchsorted(left, columns, right=True, out_int32=True)
    return start, left, until, local_start, *flags


def runs_on(device: torch.device) -> bool:
    """Whether kernels run there: on a GPU, or in Triton's interpreter."""
    return device.type == "cuda" or is_interpreted()
