"""Queries and keys at their places and addresses, in one kernel (Triton).

``contentrope.rotary`` defines the numbers; this is the fast path for whole sequences on a GPU. A layer reads its
queries once and its keys once, and writes what attention needs: queries, local keys and addressed keys. The cosines
and sines of addresses, which token by token are twice as large as the queries, are read unit by unit.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from contentrope.config import PairLayout
from contentrope.kernels.ops import as_bytes
from contentrope.rotary import Rotation

States = tuple[
    Float[Tensor, "batch seq heads head_dim"],
    Float[Tensor, "batch seq kv_heads head_dim"],
    Float[Tensor, "batch seq kv_heads head_dim"],
]


class Turns(NamedTuple):
    """How the tokens of a call are turned, the same in all layers. Slots are the units that the call touches."""

    cos: Float[Tensor, "rows seq places pairs"]
    sin: Float[Tensor, "rows seq places pairs"]
    """Of the local positions; one row, or one head, may stand for all."""
    address_cos: Float[Tensor, "batch slots kv_heads pairs"]
    address_sin: Float[Tensor, "batch slots kv_heads pairs"]
    slot: Int[Tensor, "batch seq"]
    closes: Bool[Tensor, "batch seq"]
    angles: Float[Tensor, "batch seq kv_heads pairs"] | None
    """Of each token's unit: what the gradient goes to; not to be read. None: it goes nowhere."""
    at_place: bool = False
    """Whether queries and keys have been turned to their places before."""

    def of(
        self,
        query: Float[Tensor, "batch seq heads head_dim"],
        key: Float[Tensor, "batch seq kv_heads head_dim"],
        layout: PairLayout,
    ) -> States:
        """Queries (turned by their unit's address where they close it), local keys, addressed keys."""
        from contentrope.kernels.rotary.operator import turned_states  # triton is needed only here

        facts = *self[:6], layout == "interleaved", not self.at_place
        turned, local, addressed = turned_states(query, key, self.angles, *facts)
        return turned, key if self.at_place else local, addressed


def turns_of(
    local: Rotation,
    angles: Float[Tensor, "batch slots kv_heads pairs"],
    slot: Int[Tensor, "batch seq"],
    closes: Bool[Tensor, "batch seq"],
) -> Turns:
    """``angles`` are the addresses of the slots, which are counted without gaps from 0 on."""
    fixed, by_token, slot = angles.detach(), None, slot.int().contiguous()
    if torch.is_grad_enabled() and angles.requires_grad:
        from contentrope.kernels.rotary.shares import shared_angles  # triton is needed only here

        by_token = shared_angles(angles, slot)
    return Turns(local.cos, local.sin, fixed.cos(), fixed.sin(), slot, as_bytes(closes), by_token)


def turns_at_place(angles: Float[Tensor, "batch seq kv_heads pairs"], closes: Bool[Tensor, "batch seq"]) -> Turns:
    """For queries and keys that are at their places already; ``angles`` are those of each token's unit."""
    fixed = angles.detach()
    one = fixed.new_ones(1, 1, 1, fixed.shape[-1])
    token = torch.arange(angles.shape[1], dtype=torch.int32, device=angles.device).expand(angles.shape[:2])
    learned = angles if torch.is_grad_enabled() and angles.requires_grad else None
    facts = fixed.cos(), fixed.sin(), token.contiguous(), as_bytes(closes)
    return Turns(one, torch.zeros_like(one), *facts, learned, at_place=True)
