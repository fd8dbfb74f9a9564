"""Where an open unit stands: it has no address of its own yet, but may go on from a unit before it.

A head anchored d units back reads the unit d before the open one as if the open one continued it: at that unit's
address, with positions counted from its start. It is ordinary RoPE between those two units, over d + 1 units at most.
Every other unit it sees rotated by how its address differs from the anchor's. Nothing grows with the context. To
attention nothing changes, but that competition may spare the units in between.

Shapes: slots are the units that a call touches, the first of them open before it; kv_heads and pairs as in attention.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from contentrope.errors import InputError, quoted

FARTHEST = 1024
"""Units: a cache keeps as many, and each call goes through them one by one."""


class UnitsBefore(NamedTuple):
    """Units in the order of the text, the newest last."""

    address: Float[Tensor, "batch units kv_heads pairs"]
    length: Float[Tensor, "batch units"]
    start: Int[Tensor, "batch units"]
    """The column of the first token."""

    def then(self, address: Tensor, length: Tensor, start: Tensor) -> UnitsBefore:
        joined = torch.cat((self.address.to(address.dtype), address), dim=1)
        lengths = torch.cat((self.length, length.to(self.length.dtype)), dim=1)
        return UnitsBefore(joined, lengths, torch.cat((self.start, start), dim=1))

    def after(self, finished: Int[Tensor, "batch 1"], count: int) -> UnitsBefore:
        """So many of them, beginning after each row's ``finished`` first."""
        kept = finished + torch.arange(count, device=finished.device)
        index = kept[..., None, None].expand(-1, -1, *self.address.shape[2:])
        return UnitsBefore(self.address.gather(1, index), self.length.gather(1, kept), self.start.gather(1, kept))


class Anchors:
    """``back`` holds, for every key/value head, how many units back its anchor lies; 0: it has none."""

    def __init__(self, back: tuple[int, ...], heads: int) -> None:
        whole = all(isinstance(d, int) and not isinstance(d, bool) and d >= 0 for d in back)
        if whole and max(back, default=0) > FARTHEST:
            raise InputError(f"anchors {quoted(back)}: an anchor lies at most {FARTHEST} units back")
        if len(back) != heads or not whole or not any(back):
            raise InputError(
                f"anchors {quoted(back)} must be {heads} whole numbers, one per key/value head: so many units back, "
                "0 for none, not all of them 0"
            )
        self.back = back
        self.reach = max(back)

    def carried(
        self,
        units: UnitsBefore,
        first: Int[Tensor, "batch 1"],
        frequency: Float[Tensor, "heads pairs"],
    ) -> Float[Tensor, "batch slots kv_heads pairs"]:
        """What the unit of every slot carries while it is open: the address of its anchor, rotated on by as many
        positions as there are tokens from there to its start.

        ``units`` are ``reach`` completed ones and those of the slots but the last; ``first`` is the number of slot 0;
        ``frequency`` has a row for every head, or one for all.
        """
        slots = units.length.shape[1] - self.reach + 1
        number = first + torch.arange(slots, device=units.length.device)

        def before(x: Tensor, d: int) -> Tensor:
            return x[:, self.reach - d : self.reach - d + slots]

        by_head = []
        for head, back in enumerate(self.back):
            if not back:
                by_head.append(torch.zeros_like(units.address[:, :slots, head]))
                continue
            tokens = torch.stack([before(units.length, d) for d in range(1, back + 1)]).sum(0)
            row = frequency[head if len(frequency) > 1 else 0].to(units.address)
            moved_on = before(units.address, back)[:, :, head] + tokens[..., None] * row
            by_head.append(torch.where((number >= back)[..., None], moved_on, 0.0))
        return torch.stack(by_head, dim=2)


def dealt_out(back: tuple[int, ...], heads: int) -> Anchors | None:
    """The numbers go to the heads in order, again from the first; all of them 0, or none: no anchors.

    >>> dealt_out((0, 1), heads=4).back
    (0, 1, 0, 1)
    """
    if not any(back):
        return None
    return Anchors(back if heads % len(back) else back * (heads // len(back)), heads)


def unit_lengths(
    slot: Int[Tensor, "batch seq"],
    valid: Bool[Tensor, "batch seq"],
    open_length: Int[Tensor, "batch 1"],
    slots: int,
    dtype: torch.dtype,
) -> Float[Tensor, "batch slots"]:
    """Tokens of each slot's unit; ``open_length`` of the first came before."""
    counted = torch.zeros(len(slot), slots, dtype=dtype, device=slot.device).scatter_add(1, slot, valid.to(dtype))
    return counted + F.pad(open_length.to(dtype), (0, slots - 1))
