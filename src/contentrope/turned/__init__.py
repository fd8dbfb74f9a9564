"""Queries and keys at their places and addresses, in one kernel (Triton).

``contentrope.rotary`` defines the numbers; this is the fast path for whole sequences on a GPU. A layer reads its
queries once and its keys once, and writes what attention needs: queries, local keys and addressed keys. As rotations
one after the other the same takes twice the traffic, most of it cosines and sines of addresses, which are read here
unit by unit and not token by token.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from contentrope.config import PairLayout
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
    """Of each token's unit: what the gradient goes to, and nothing else. None: it goes nowhere."""

    def of(
        self,
        query: Float[Tensor, "batch seq heads head_dim"],
        key: Float[Tensor, "batch seq kv_heads head_dim"],
        layout: PairLayout,
    ) -> States:
        """Queries (turned by their unit's address where they close it), local keys, addressed keys."""
        from contentrope.turned.operator import turned_states  # triton is needed only here

        return turned_states(query, key, self.angles, *self[:6], layout == "interleaved")


def turns_of(
    local: Rotation,
    angles: Float[Tensor, "batch slots kv_heads pairs"],
    slot: Int[Tensor, "batch seq"],
    closes: Bool[Tensor, "batch seq"],
) -> Turns:
    """``angles`` are the addresses of the slots."""
    fixed, by_token = angles.detach(), None
    if torch.is_grad_enabled() and angles.requires_grad:
        by_token = angles.gather(1, slot[..., None, None].expand(-1, -1, *angles.shape[2:]))
    return Turns(local.cos, local.sin, fixed.cos(), fixed.sin(), slot.int(), closes.to(torch.int8), by_token)
