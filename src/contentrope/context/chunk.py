"""What a scheme is given for one forward pass, and what it must make of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from contentrope.attention.plain import causal_attention
from contentrope.cache import Cache, ModelState
from contentrope.config import ModelConfig
from contentrope.parallel import Share
from contentrope.rotary import Rotation, at_least_float32, rotate
from contentrope.units import Segmenter, SegmenterState, Units


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """The tokens of one call."""

    config: ModelConfig
    ids: Int[Tensor, "batch seq"]
    embedded: Float[Tensor, "batch seq dim"]
    embedding: Callable[[Int[Tensor, "batch seq"]], Float[Tensor, "batch seq dim"]]
    """Input embeddings of any ids, for what must be summed again after a rollback."""
    valid: Bool[Tensor, "batch seq"] | None
    ends: Bool[Tensor, "batch seq"] | None
    memory: Bool[Tensor, "batch seq"] | None
    cache: Cache | None
    state: ModelState
    backend: str
    share: Share | None = None
    """Under context parallelism: these tokens are this rank's slice of the text."""
    host_ids: list[int] | None = None
    """One token per row after cached ones: a host copy of the ids, which were read back to be checked."""

    @property
    def offset(self) -> int:
        """Columns read before this call."""
        return self.cache.length if self.cache is not None else 0

    @property
    def columns(self) -> int:
        """Columns read once this call is over."""
        return self.offset + self.ids.shape[1]

    @property
    def wide(self) -> torch.dtype:
        return at_least_float32(self.embedded.dtype)

    def positions(self) -> Int[Tensor, "rows seq"]:
        """Tokens before each token of its row, padding not counted; one row for all where there is no padding."""
        if self.valid is None and not (self.cache is not None and self.cache.columns.padded):
            return torch.arange(self.offset, self.columns, device=self.ids.device)[None]
        valid = torch.ones_like(self.ids) if self.valid is None else self.valid.long()
        return (self.state.tokens[:, None] + valid.cumsum(1) - 1).clamp(min=0)

    def tokens_after(self) -> Int[Tensor, "batch"]:
        count = self.ids.shape[1] if self.valid is None else self.valid.sum(1)
        return self.state.tokens + count

    def read_units(self, segmenter: Segmenter) -> tuple[Units, SegmenterState, SegmenterState]:
        """The units of these tokens, and the segmenter's state before and after them."""
        if self.cache is None:
            before = segmenter.initial(len(self.ids), self.ids.device)
        else:
            before = self.cache.columns.segmenter_state(segmenter)
        return self.advance(segmenter, before)

    def advance(self, segmenter: Segmenter, before: SegmenterState) -> tuple[Units, SegmenterState, SegmenterState]:
        """The same where the state before these tokens is known."""
        units, after = segmenter.advance(
            before, self.ids, valid=self.valid, memory=self.memory, ends=self.ends, known=self.host_ids
        )
        return units, before, after

    def note(self, units: Units | None, begins: Int[Tensor, "batch seq"] | None = None) -> None:
        """Let the cache, if there is one, hold the facts of the new columns beside those of the old."""
        if self.cache is not None:
            self.cache.columns.note(self.ids, units, begins, valid=self.valid, ends_given=self.ends is not None)

    def key_valid(self) -> Bool[Tensor, "batch keys"] | None:
        """Which columns, cached ones included, hold a token; None: all of them. Cached facts must be noted first."""
        if self.cache is None:
            return self.valid
        if self.valid is None and not self.cache.columns.padded:
            return None
        return self.cache.fact("valid", 0, self.columns).bool()


class Projected(NamedTuple):
    """What a layer makes of its input, to read with and to be read."""

    query: Float[Tensor, "batch seq heads head_dim"]
    key: Float[Tensor, "batch seq kv_heads head_dim"]
    value: Float[Tensor, "batch seq kv_heads head_dim"]
    together: Float[Tensor, "batch seq all_heads head_dim"] | None = None
    """All three side by side, as one projection gave them; None where one of them has been changed."""


@runtime_checkable
class Context(Protocol):
    """What every layer of one forward pass uses."""

    def attend(
        self,
        layer: int,
        hidden: Float[Tensor, "batch seq dim"],
        projected: Projected,
    ) -> Float[Tensor, "batch seq heads head_dim"]:
        """Attention of one layer, whose normed input is ``hidden``; appends to the cache if there is one."""

    def embed(self, embedded: Float[Tensor, "batch seq dim"]) -> Float[Tensor, "batch seq dim"]:
        """What the first layer reads: the input embeddings, with an absolute position added or as they are."""

    def commit(self) -> None:
        """Add this call to the cache; called once, after the last layer."""


class PlainContext:
    """The context of schemes without addresses: one rotation for queries and keys, or slopes, over causal attention."""

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
        masks = {"key_valid": self.key_valid, "slopes": self.slopes, "positions": self.positions}
        return causal_attention(query, key, value, **masks)

    def commit(self) -> None:
        chunk = self.chunk
        if chunk.cache is None:
            return
        segmenter = self.units[1] if self.units is not None else None
        state = replace(chunk.state, tokens=chunk.tokens_after(), segmenter=segmenter)
        chunk.cache.commit(chunk.ids.shape[1], state, padded=chunk.valid is not None)
