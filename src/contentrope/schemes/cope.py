"""``cope``: contextual position encoding (Golovneva et al., 2024): positions count the keys that pass a gate.

The gate is the sigmoid of the attention logit; what a position adds to the score is learned per layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from contentrope.config import ModelConfig
from contentrope.errors import InputError
from contentrope.frames import Chunk, ContextualFrame
from contentrope.schemes.base import read_options

MOST_POSITIONS = 2**16
"""Every query is multiplied by all of them."""


@dataclass(frozen=True, kw_only=True)
class Options:
    positions: int = 64
    """Position embeddings per layer, shared by its heads; positions beyond the last count as the last."""

    def __post_init__(self) -> None:
        if self.positions < 1:
            raise InputError(f"positions must be positive, got {self.positions}")
        if self.positions > MOST_POSITIONS:
            raise InputError(f"positions must be at most {MOST_POSITIONS}, got {self.positions}")


class Cope(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        positions = read_options("cope", Options, config.options).positions
        # Zero, as in the paper's code: a fresh model has no positions. Queries are not zero, so these learn at once.
        self.embeddings = nn.Parameter(torch.zeros(config.layers, positions, config.head_dim))

    def frame(self, chunk: Chunk) -> ContextualFrame:
        return ContextualFrame(chunk, self.embeddings)
