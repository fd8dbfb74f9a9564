"""What the schemes on one global position counter share."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from contentrope.errors import InputError
from contentrope.frames import Chunk, PlainFrame
from contentrope.rotary import PositionRotations


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    pass


@dataclass(frozen=True, kw_only=True)
class ScaleOptions:
    factor: float = 16.0
    """How many times longer than in training the context may become."""

    def __post_init__(self) -> None:
        if not self.factor >= 1.0:
            raise InputError(f"factor must be at least 1, got {self.factor}")


def rotary_frame(
    chunk: Chunk,
    rotations: PositionRotations,
    positions: Int[Tensor, "rows seq"] | None = None,
    bound: int | None = None,
) -> PlainFrame:
    """Plain attention with queries and keys turned by their position: the row's token count unless given."""
    if positions is None:
        positions, bound = chunk.positions(), chunk.offset + chunk.ids.shape[1]
    assert bound is not None
    return PlainFrame(chunk, rotations.at(positions, chunk.wide, bound=bound))
