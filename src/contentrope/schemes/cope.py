"""``cope``: contextual position encoding (Golovneva et al., 2024): positions count the keys that pass a gate.

The gate is the sigmoid of the attention logit; what a position adds to the score is learned per layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from contentrope.attention.contextual import contextual_attention
from contentrope.config import ModelConfig
from contentrope.context import Chunk, PlainContext
from contentrope.errors import InputError
from contentrope.schemes.base import Scheme

MOST_POSITIONS = 2**16
"""Every query is multiplied by all of them."""


@dataclass(frozen=True, kw_only=True)
class Options:
    positions: int = 64
    """Position embeddings per layer, shared by its heads; larger positions count as the last."""

    def __post_init__(self) -> None:
        if self.positions < 1:
            raise InputError(f"positions must be positive, got {self.positions}")
        if self.positions > MOST_POSITIONS:
            raise InputError(f"positions must be at most {MOST_POSITIONS}, got {self.positions}")


class Cope(Scheme):
    name = "cope"
    Options = Options

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        # Zero, as in the paper's code: a fresh model has no positions. Queries are not zero, so these learn at once.
        self.embeddings = nn.Parameter(torch.zeros(config.layers, self.options.positions, config.head_dim))

    def context(self, chunk: Chunk) -> CopeContext:
        return CopeContext(chunk, self.embeddings)


class CopeContext(PlainContext):
    def __init__(self, chunk: Chunk, embeddings: Float[Tensor, "layers positions head_dim"]) -> None:
        super().__init__(chunk)
        self.embeddings = embeddings

    def read(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return contextual_attention(query, key, value, self.embeddings[layer], key_valid=self.key_valid)
