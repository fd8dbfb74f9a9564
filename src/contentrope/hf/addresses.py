"""The trained part: addresses of completed units, one set of angles for each rotary of the model.

Most models rotate all their layers alike and have one. Where layers have frequencies of their own, the same distance
means other angles there, so they need addresses of their own.

Shapes: slots are the units a call touches, in order; kv_heads and pairs are those of a rotary.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from contentrope.address import ContentAddress, sum_by_slot, sum_by_unit
from contentrope.hf.rotary import LayerRotary
from contentrope.rotary import PositionRotations, at_least_float32
from contentrope.units import Units

NAME = "contentrope"
"""Under which the module is found on the model, and named in ``modules_to_save``."""


class OpenUnit(NamedTuple):
    """Cached tokens; ``belongs`` marks those of the unit that is open when a call begins."""

    embedded: Float[Tensor, "batch tail dim"]
    local: Int[Tensor, "batch tail"]
    belongs: Bool[Tensor, "batch tail"]


class Addresses(nn.Module):
    """The angles of a call's units from its embeddings; and the exponents of the competition, where it is learned."""

    def __init__(
        self,
        rotaries: list[LayerRotary],
        dim: int,
        max_length: int,
        exponents: Float[Tensor, "layers heads"] | None = None,
    ) -> None:
        super().__init__()
        self.rotaries = rotaries
        self.max_length = max_length
        self.exponents = None if exponents is None else nn.Parameter(exponents)
        """Of the competition, for each layer and query head; None: one fixed number for all."""
        self.seen_at: list[int | None] | None = None
        """The versions of the weights when they were last seen not to be zero."""
        self.rotations = nn.ModuleList(PositionRotations(r.frequency[None]) for r in rotaries)
        self.by_turning = nn.ModuleList(ContentAddress(dim, r.heads, len(r.frequency)) for r in rotaries)
        """One for each rotary. Saved weights have this name."""

    def forward(
        self,
        embedded: Float[Tensor, "batch seq dim"],
        units: Units,
        slot: Int[Tensor, "batch seq"],
        open_unit: OpenUnit | None,
    ) -> list[Float[Tensor, "batch slots kv_heads pairs"]]:
        found = []
        for index, address in enumerate(self.by_turning):
            carried = None
            if open_unit is not None:
                rotated = self._rotate(index, open_unit.embedded, open_unit.local)
                total = torch.where(open_unit.belongs[..., None], rotated, 0.0).sum(1)
                carried = total, open_unit.belongs.sum(1)
            sums = sum_by_unit(self._rotate(index, embedded, units.local), units, slot, carried)
            found.append(address(sums.total, sums.tokens))
        return found

    def of_columns(
        self,
        embedded: Float[Tensor, "batch columns dim"],
        local: Int[Tensor, "batch columns"],
        unit: Int[Tensor, "batch columns"],
        valid: Bool[Tensor, "batch columns"],
        padded: bool,
    ) -> list[Float[Tensor, "batch slots kv_heads pairs"]]:
        """The angles of the units in some columns of a text, counted from the first column's."""
        slot = unit - unit[:, :1]
        rotated = (self._rotate(index, embedded, local) for index in range(len(self.by_turning)))
        sums = (sum_by_slot(x, slot, valid, padded) for x in rotated)
        return [address(*both) for address, both in zip(self.by_turning, sums, strict=True)]

    def _rotate(self, index: int, embedded: Tensor, local: Int[Tensor, "batch seq"]) -> Tensor:
        """Embeddings are rotated as keys are, block by block of a head's size; what is left over is not rotated."""
        rotary = self.rotaries[index]
        wide = at_least_float32(embedded.dtype)
        rotations = cast(PositionRotations, self.rotations[index])
        rotation = rotations.at(local, wide, bound=self.max_length)
        whole = embedded.shape[-1] // rotary.head_dim * rotary.head_dim
        blocks = embedded[..., :whole].to(wide).unflatten(-1, (-1, rotary.head_dim))
        if not whole:
            return embedded.to(wide)
        return torch.cat((rotary.rotate(blocks, rotation).flatten(-2), embedded[..., whole:].to(wide)), dim=-1)

    @property
    def frequencies(self) -> list[Float[Tensor, "one pairs"]]:
        """In float64, of each rotary, where the weights are: a captured update copies nothing from the host."""
        return [cast(PositionRotations, rotations).inverse_frequency for rotations in self.rotations]

    @property
    def dtype(self) -> torch.dtype:
        """Of the angles, whatever the weights were cast to."""
        return at_least_float32(cast(ContentAddress, self.by_turning[0]).project.weight.dtype)

    def are_zero(self) -> bool:
        """Whether nothing is learned yet, neither addresses nor exponents. False while a compiler traces.

        To avoid GPU syncs the weights are looked at again only when they were written to since they were seen not to
        be zero; in training on a GPU not even then, as an optimizer writes at every step. Only "not zero" is cached: to
        take learned weights for zero would be wrong, to take zero ones for learned costs the last bit at most.
        """
        if torch.compiler.is_compiling():
            return False
        projections = [cast(ContentAddress, address).project for address in self.by_turning]
        weights = [w for p in projections for w in (p.weight, p.bias)]
        weights += [] if self.exponents is None else [self.exponents]
        versions = [None if w.is_inference() else w._version for w in weights]
        training_on_gpu = weights[0].is_cuda and torch.is_grad_enabled()
        if self.seen_at is not None and (training_on_gpu or versions == self.seen_at):
            return False
        zero = not any(bool(w.any()) for w in weights)
        self.seen_at = None if zero else versions
        return zero
