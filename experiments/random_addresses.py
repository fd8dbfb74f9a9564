"""Random addresses in a Hugging Face model: the control that tells what the content of an address is worth.

As in the scheme ``random``: drawn anew whenever the model is trained, so that nothing can be learned of a certain draw;
in evaluation they depend on the unit's number alone, so that a cache and the whole text agree. They take the place of
the trained part inside an attached model: the library itself has no use for them.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

import contentrope.hf as chf
from contentrope.address import hashed, random_angles
from contentrope.hf.addresses import NAME, Addresses, OpenUnit
from contentrope.rotary import at_least_float32
from contentrope.units import Units

SEED = 0
"""Of all texts in evaluation."""
MODULUS = 2**40
"""So that sums over a unit stay far from what an integer holds."""


class RandomAddresses(Addresses):
    """Standard normal angles for every unit."""

    def forward(
        self, embedded: Tensor, units: Units, slot: Int[Tensor, "batch seq"], open_unit: OpenUnit | None
    ) -> list[Float[Tensor, "batch slots kv_heads pairs"]]:
        return self._drawn((units.unit - slot)[:, :1], slot.shape[1])

    def of_columns(
        self, embedded: Tensor, local: Tensor, unit: Int[Tensor, "batch columns"], valid: Tensor, padded: bool
    ) -> list[Float[Tensor, "batch slots kv_heads pairs"]]:
        return self._drawn(unit[:, :1], unit.shape[1] + 1)

    def are_zero(self) -> bool:
        return False

    def _drawn(self, first: Int[Tensor, "batch 1"], slots: int) -> list[Float[Tensor, "batch slots kv_heads pairs"]]:
        shapes = [(rotary.heads, len(rotary.frequency)) for rotary in self.rotaries]
        if self.training:
            return [torch.randn(len(first), slots, *x, dtype=self.dtype, device=first.device) for x in shapes]
        numbers = first + torch.arange(slots, device=first.device)
        seeds = torch.full((len(first),), SEED, device=first.device)
        return [random_angles(seeds, numbers, *shape).to(self.dtype) for shape in shapes]


class RandomByContent(RandomAddresses):
    """In evaluation drawn by the unit's own tokens, so that a unit has the same address in any company: its number
    would say where it stands, and a store that keeps units apart knows none."""

    def forward(
        self, embedded: Tensor, units: Units, slot: Int[Tensor, "batch seq"], open_unit: OpenUnit | None
    ) -> list[Float[Tensor, "batch slots kv_heads pairs"]]:
        if self.training:
            return super().forward(embedded, units, slot, open_unit)
        sums = _by_slot(embedded, units.local, slot, units.valid, slot.shape[1])
        if open_unit is not None:
            first = torch.zeros_like(open_unit.local)
            sums = sums + _by_slot(open_unit.embedded, open_unit.local, first, open_unit.belongs, slot.shape[1])
        return self._by_number(sums)

    def of_columns(
        self, embedded: Tensor, local: Tensor, unit: Int[Tensor, "batch columns"], valid: Tensor, padded: bool
    ) -> list[Float[Tensor, "batch slots kv_heads pairs"]]:
        if self.training:
            return super().of_columns(embedded, local, unit, valid, padded)
        return self._by_number(_by_slot(embedded, local, unit - unit[:, :1], valid, unit.shape[1] + 1))

    def _by_number(self, numbers: Int[Tensor, "batch slots"]) -> list[Tensor]:
        seeds = torch.full((len(numbers),), SEED, device=numbers.device)
        shapes = [(rotary.heads, len(rotary.frequency)) for rotary in self.rotaries]
        return [random_angles(seeds, numbers, *shape).to(self.dtype) for shape in shapes]


def _by_slot(
    embedded: Float[Tensor, "batch seq dim"], local: Tensor, slot: Tensor, counts: Tensor, slots: int
) -> Int[Tensor, "batch slots"]:
    """A number for each unit, from its tokens and their places; sums of integers depend on no order."""
    bits = embedded.detach().float().view(torch.int32).long()
    token = hashed(hashed(bits.sum(-1)) + hashed(local)) % MODULUS
    return token.new_zeros(len(token), slots).scatter_add(1, slot, token * counts)


def draw_at_random(model: Any, kind: type[RandomAddresses] = RandomAddresses) -> None:
    """Let an attached model draw its addresses."""
    adapter = chf.adapter_of(model)
    weight = adapter.embedding
    drawn = kind(adapter.rotaries, weight.shape[1], adapter.segmenter.max_length, adapter.exponents())
    model.add_module(NAME, drawn.to(weight.device, at_least_float32(weight.dtype)))
