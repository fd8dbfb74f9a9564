"""What a scheme is given for one call, and what it must give back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from contentrope.cache import Cache, StreamState
from contentrope.config import ModelConfig
from contentrope.parallel import Share
from contentrope.rotary import at_least_float32
from contentrope.units import Units


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
    state: StreamState
    backend: str
    share: Share | None = None
    """Given where several processes read the text together, these tokens being a part of it."""
    known: list[int] | None = None
    """One token per row after cached ones: the ids as numbers, which were read back to be checked."""

    @property
    def offset(self) -> int:
        """Columns read before this call."""
        return self.cache.length if self.cache is not None else 0

    @property
    def wide(self) -> torch.dtype:
        return at_least_float32(self.embedded.dtype)

    def positions(self) -> Int[Tensor, "rows seq"]:
        """Tokens before each token of its row, padding not counted; one row for all where there is no padding."""
        seq, device = self.ids.shape[1], self.ids.device
        if self.valid is None and not (self.cache is not None and self.cache.padded):
            return torch.arange(self.offset, self.offset + seq, device=device)[None]
        valid = torch.ones_like(self.ids) if self.valid is None else self.valid.long()
        return (self.state.tokens[:, None] + valid.cumsum(1) - 1).clamp(min=0)

    def tokens_after(self) -> Int[Tensor, "batch"]:
        count = self.ids.shape[1] if self.valid is None else self.valid.sum(1)
        return self.state.tokens + count

    def note(self, units: Units | None) -> None:
        """Let the cache, if there is one, hold the facts of the new columns beside those of the old."""
        if self.cache is not None:
            self.cache.note(self.ids, self.valid, units)

    def key_valid(self) -> Bool[Tensor, "batch keys"] | None:
        """Which columns, cached ones included, hold a token; None: all of them. Cached facts must be noted first."""
        if self.cache is None:
            return self.valid
        if self.valid is None and not self.cache.padded:
            return None
        return self.cache.fact("valid", 0, self.offset + self.ids.shape[1]).bool()


class Projected(NamedTuple):
    """What a layer makes of its input, to read with and to be read."""

    query: Float[Tensor, "batch seq heads head_dim"]
    key: Float[Tensor, "batch seq kv_heads head_dim"]
    value: Float[Tensor, "batch seq kv_heads head_dim"]
    together: Float[Tensor, "batch seq all_heads head_dim"] | None = None
    """All three side by side, as one projection gave them; None where one of them has been changed."""


@runtime_checkable
class Frame(Protocol):
    """What the layers ask of a scheme."""

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
        """Make the cache remember this call; called once, after the last layer."""
