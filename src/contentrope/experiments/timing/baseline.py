"""RoPE as fast as it can be: SDPA, and queries and keys turned by one compiled kernel where the step is eager.

Eager rotations take a handful of kernels per layer. Beside such a baseline any addressing would look cheap.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from contentrope.config import PairLayout
from contentrope.frames import Chunk, PlainFrame, Projected
from contentrope.model import Transformer
from contentrope.rotary import Rotation, rotate
from contentrope.schemes import Scheme


def with_compiled_rotary(model: Transformer) -> Transformer:
    """The same model, and the same numbers up to rounding."""
    model.scheme = CompiledRotary(model.scheme)
    return model


class CompiledRotary(nn.Module):
    """A scheme that rotates, with its rotations compiled."""

    def __init__(self, scheme: nn.Module) -> None:
        super().__init__()
        self.scheme = scheme
        self.turn: Any = torch.compile(turn_both, dynamic=False, fullgraph=True)

    def frame(self, chunk: Chunk) -> PlainFrame:
        plain = cast(Scheme, self.scheme).frame(chunk)
        assert isinstance(plain, PlainFrame)
        assert plain.rotation is not None
        return TurnedFrame(chunk, plain.rotation, self.turn)


class TurnedFrame(PlainFrame):
    """Plain attention whose queries and keys are turned before it gets them."""

    def __init__(self, chunk: Chunk, rotation: Rotation, turn: Any) -> None:
        super().__init__(chunk)
        self.turned_by, self.turn = rotation, turn

    def attend(self, layer: int, hidden: Tensor, projected: Projected) -> Tensor:
        query, key = self.turn(projected.query, projected.key, self.turned_by, self.chunk.config.rotary.pairs)
        return super().attend(layer, hidden, Projected(query, key, projected.value))


def turn_both(query: Tensor, key: Tensor, rotation: Rotation, layout: PairLayout) -> tuple[Tensor, Tensor]:
    return rotate(query, rotation, layout), rotate(key, rotation, layout)
