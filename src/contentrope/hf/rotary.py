"""How a model turns its queries and keys: found out by asking it, not kept in a list.

Shapes: rows (of one token each), heads, head_dim, pairs (planes that rotate).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

import torch
from jaxtyping import Float
from torch import Tensor

from contentrope.config import PairLayout
from contentrope.rotary import Rotation, rotate

TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.bfloat16: 4e-2, torch.float16: 1e-2}
"""Relative to the largest number. Rotary embeddings are computed in float32, whatever the model's dtype."""


@dataclass(frozen=True, eq=False)
class Turning:
    """The planes of a head, how fast each turns, and which way."""

    frequency: Float[Tensor, "pairs"]
    pairs: PairLayout
    backwards: bool
    heads: int
    """Key/value heads."""
    head_dim: int

    def turn(self, x: Float[Tensor, "batch seq heads head_dim"], rotation: Rotation) -> Tensor:
        """Turn ``x`` as the model turns with growing positions: angles of ``frequency * n`` go n positions on."""
        if not self.backwards:
            return rotate(x, rotation, self.pairs)
        angles = None if rotation.angles is None else -rotation.angles
        return rotate(x, Rotation(rotation.cos, -rotation.sin, angles), self.pairs)

    def same_as(self, other: Turning) -> bool:
        if (self.pairs, self.backwards, self.heads) != (other.pairs, other.backwards, other.heads):
            return False
        return self.head_dim == other.head_dim and torch.equal(self.frequency, other.frequency)

    def describe(self) -> dict[str, object]:
        """As settings to be compared; frequencies at the precision in which models agree on them."""
        return {
            "pairs": self.pairs,
            "backwards": self.backwards,
            "heads": self.heads,
            "head_dim": self.head_dim,
            "frequency": [float(f"{x:.6g}") for x in self.frequency.tolist()],
        }


def turning_of(
    seen: dict[int, Float[Tensor, "rows heads head_dim"]],
    cos: Float[Tensor, "rotating"],
    sin: Float[Tensor, "rotating"],
    buffers: list[Tensor],
) -> Turning | None:
    """The turning that makes of the vectors at position 0 those at the other positions, or None.

    ``cos`` and ``sin`` are what the rotary embedding says of position 1; ``buffers`` may hold the exact frequencies.
    """
    _, heads, head_dim = seen[0].shape
    for frequency in _frequencies(torch.atan2(sin.double(), cos.double()).cpu(), buffers):
        if 2 * len(frequency) > head_dim:
            continue
        for pairs in get_args(PairLayout):
            for backwards in (False, True):
                found = Turning(frequency, pairs, backwards, heads, head_dim)
                if _explains(found, seen):
                    return found
    return None


def stands_still(seen: dict[int, Tensor]) -> bool:
    """Whether the layer gives no position to its vectors."""
    return all(_close(seen[0], there) for there in seen.values())


def _frequencies(angles: Float[Tensor, "rotating"], buffers: list[Tensor]) -> Iterator[Tensor]:
    """One per plane; rotary embeddings list each of them twice, in one of two orders, or once."""
    half = len(angles) // 2
    if len(angles) == 2 * half and half:
        if torch.allclose(angles[:half], angles[half:]):
            yield _exact(angles[:half], buffers)
        if torch.allclose(angles[0::2], angles[1::2]):
            yield _exact(angles[0::2], buffers)
    yield _exact(angles, buffers)


def _exact(measured: Tensor, buffers: list[Tensor]) -> Tensor:
    """The buffer that was measured: angles taken back from cosines and sines are good to float32 only."""
    for buffer in buffers:
        if buffer.shape == measured.shape and torch.allclose(buffer.double().cpu(), measured, rtol=1e-4, atol=1e-6):
            return buffer.detach().double().cpu()
    return measured


def _explains(turning: Turning, seen: dict[int, Tensor]) -> bool:
    for position, there in seen.items():
        angles = (position * turning.frequency.to(there.device))[None, None, None]
        turned = turning.turn(seen[0].double()[:, None], Rotation(angles.cos(), angles.sin()))[:, 0]
        if not _close(turned.to(there.dtype), there):
            return False
    return True


def _close(ours: Tensor, theirs: Tensor) -> bool:
    error = (ours.double() - theirs.double()).abs().max()
    return bool(error <= TOLERANCE[theirs.dtype] * theirs.double().abs().max())
