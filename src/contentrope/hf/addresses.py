"""The trained part: addresses of completed units, one set of angles for each way of turning a model has.

Most models turn all their layers alike and have one. Where layers have frequencies of their own, the same place in
the text means other angles there, and one address could not stand for it.

Shapes: slots are the units a call touches, in order; kv_heads and pairs are those of a turning.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from contentrope.address import ContentAddress, sum_by_unit
from contentrope.hf.rotary import Turning
from contentrope.rotary import PositionRotations, at_least_float32
from contentrope.units import Units

NAME = "contentrope"
"""Under which the module is found on the model, and named in ``modules_to_save``."""


class OpenUnit(NamedTuple):
    """The cached tokens among which are those of the unit that a call goes on with."""

    embedded: Float[Tensor, "batch tail dim"]
    local: Int[Tensor, "batch tail"]
    belongs: Bool[Tensor, "batch tail"]


class Addresses(nn.Module):
    """From the embeddings of a call to the angles of its units; and, where it is learned, how units compete."""

    def __init__(
        self,
        turnings: list[Turning],
        dim: int,
        max_length: int,
        exponents: Float[Tensor, "layers heads"] | None = None,
    ) -> None:
        super().__init__()
        self.turnings = turnings
        self.max_length = max_length
        self.exponents = None if exponents is None else nn.Parameter(exponents)
        """Of the competition between units, for each layer and query head; None: one fixed number for all."""
        self.seen_at: list[int | None] | None = None
        """How often the weights had been written to when last seen not to be zero."""
        self.rotations = nn.ModuleList(PositionRotations(t.frequency[None]) for t in turnings)
        self.by_turning = nn.ModuleList(ContentAddress(dim, t.heads, len(t.frequency)) for t in turnings)

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
                turned = self._turn(index, open_unit.embedded, open_unit.local)
                total = torch.where(open_unit.belongs[..., None], turned, 0.0).sum(1)
                carried = total, open_unit.belongs.sum(1)
            sums = sum_by_unit(self._turn(index, embedded, units.local), units, slot, carried)
            found.append(address(sums.total, sums.tokens))
        return found

    def _turn(self, index: int, embedded: Tensor, local: Int[Tensor, "batch seq"]) -> Tensor:
        """Embeddings turn as keys do, block by block of a head's size; what is left over does not turn."""
        turning = self.turnings[index]
        wide = at_least_float32(embedded.dtype)
        rotations = cast(PositionRotations, self.rotations[index])
        rotation = rotations.at(local, wide, bound=self.max_length)
        whole = embedded.shape[-1] // turning.head_dim * turning.head_dim
        blocks = embedded[..., :whole].to(wide).unflatten(-1, (-1, turning.head_dim))
        if not whole:
            return embedded.to(wide)
        return torch.cat((turning.turn(blocks, rotation).flatten(-2), embedded[..., whole:].to(wide)), dim=-1)

    @property
    def dtype(self) -> torch.dtype:
        """Of the angles, whatever the weights were cast to."""
        return at_least_float32(cast(ContentAddress, self.by_turning[0]).project.weight.dtype)

    def are_zero(self) -> bool:
        """Whether nothing is learned yet, neither addresses nor exponents. Not asked while a compiler traces.

        A device is asked again only when weights were written to since they were seen not to be zero; in training on
        a GPU not even then, as an optimizer writes at every step. (To take learned weights for zero would be wrong; to
        take zero ones for learned costs the last bit at most. So only that they are not zero is remembered.)
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
