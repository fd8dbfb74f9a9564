"""The frame of contextual positions: plain frames with another attention."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from contentrope.attention.contextual import contextual_attention
from contentrope.frames.chunk import Chunk
from contentrope.frames.plain import PlainFrame


class ContextualFrame(PlainFrame):
    def __init__(self, chunk: Chunk, embeddings: Float[Tensor, "layers positions head_dim"]) -> None:
        super().__init__(chunk)
        self.embeddings = embeddings

    def read(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return contextual_attention(query, key, value, self.embeddings[layer], key_valid=self.key_valid)
