"""The frame of schemes without addresses: one rotation for queries and keys, or slopes, over plain causal attention."""

from __future__ import annotations

from dataclasses import replace

from jaxtyping import Float
from torch import Tensor

from contentrope.attention.plain import causal_attention
from contentrope.cache import StreamState
from contentrope.frames.chunk import Chunk, Projected
from contentrope.rotary import Rotation, rotate
from contentrope.units import SegmenterState, Units


class PlainFrame:
    def __init__(
        self,
        chunk: Chunk,
        rotation: Rotation | None = None,
        *,
        slopes: Float[Tensor, "heads"] | None = None,
        added: Float[Tensor, "batch seq dim"] | None = None,
        units: tuple[Units, SegmenterState] | None = None,
    ) -> None:
        self.chunk = chunk
        self.rotation = rotation
        self.slopes = slopes
        self.added = added
        self.units = units
        chunk.note(units[0] if units is not None else None)
        self.key_valid = chunk.key_valid()
        # Distances count tokens, not columns: with padding between them the two differ.
        self.positions = self.key_valid.long().cumsum(1) if self.key_valid is not None else None

    def embed(self, embedded: Tensor) -> Tensor:
        return embedded if self.added is None else embedded + self.added.to(embedded.dtype)

    def attend(self, layer: int, hidden: Tensor, projected: Projected) -> Tensor:
        query, key, value, _ = projected
        if self.rotation is not None:
            layout = self.chunk.config.rotary.pairs
            query, key = rotate(query, self.rotation, layout), rotate(key, self.rotation, layout)
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        if self.chunk.cache is not None:
            key, value = self.chunk.cache.append(layer, key, value)
        return self.read(layer, query, key, value).transpose(1, 2)

    def read(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention of the new queries to all keys so far, (batch, heads, tokens, head_dim)."""
        return causal_attention(
            query,
            key,
            value,
            key_valid=self.key_valid,
            slopes=self.slopes,
            positions=self.positions,
        )

    def commit(self) -> None:
        chunk = self.chunk
        if chunk.cache is None:
            return
        segmenter = self.units[1] if self.units is not None else None
        state: StreamState = replace(chunk.state, tokens=chunk.tokens_after(), segmenter=segmenter)
        chunk.cache.commit(chunk.ids.shape[1], state, padded=chunk.valid is not None)
