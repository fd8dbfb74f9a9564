"""``path``: PaTH attention (Yang et al., 2025): between key and query stand reflections learned from the tokens.

H_t = I - beta_t w_t w_t^T with a unit vector w_t and beta_t in (0, 2). Both go into one vector, the reflector
r_t = sqrt(beta_t) w_t: H_t = I - r_t r_t^T.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from contentrope.attention.householder import path_attention, rewritten_keys
from contentrope.cache import Cache
from contentrope.config import ModelConfig
from contentrope.context import Chunk, PlainContext, Projected
from contentrope.schemes.base import Scheme

RANK = 32
"""Of the map from a layer's input to w, as in the authors' code."""
WINDOW = 3
"""Tokens a reflector is made from: its own and those before it."""


class Path(Scheme):
    name = "path"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.networks = nn.ModuleList(Reflectors(config) for _ in range(config.layers))

    def context(self, chunk: Chunk) -> PathContext:
        return PathContext(chunk, self.networks)


class Reflectors(nn.Module):
    """One layer's w (a low-rank map, a short causal convolution, SiLU, unit length) and beta, per key head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.by_head = (config.key_heads, config.head_dim)
        size = config.key_heads * config.head_dim
        rank = min(RANK, size)
        self.reduce = nn.Linear(config.dim, rank, bias=False)
        self.expand = nn.Linear(rank, size, bias=False)
        self.taps = nn.Parameter(torch.empty(WINDOW, config.key_heads, 1, config.head_dim))
        self.strength = nn.Linear(config.dim, config.key_heads)
        for linear in (self.reduce, self.expand, self.strength):
            nn.init.normal_(linear.weight, std=0.02)
        nn.init.zeros_(self.strength.bias)
        # As torch begins a convolution of this width.
        nn.init.uniform_(self.taps, -1 / math.sqrt(WINDOW), 1 / math.sqrt(WINDOW))

    def features(self, hidden: Float[Tensor, "batch seq dim"]) -> Float[Tensor, "batch kv_heads seq head_dim"]:
        """What a token contributes to its own reflector and the next ones."""
        return self.expand(self.reduce(hidden)).unflatten(-1, self.by_head).transpose(1, 2)

    def reflectors(
        self,
        hidden: Float[Tensor, "batch seq dim"],
        window: Sequence[Float[Tensor, "batch kv_heads seq head_dim"]],
        dtype: torch.dtype,
    ) -> Float[Tensor, "batch kv_heads seq head_dim"]:
        """``window`` are the features of the last tokens, the present one's last; zero where there was none."""
        mixed = sum(tap * step.to(dtype) for tap, step in zip(self.taps.to(dtype), window, strict=True))
        direction = F.normalize(F.silu(cast(Tensor, mixed)), dim=-1)
        # sqrt(2 sigmoid(x)); taken by logarithms its gradient stays finite where the sigmoid vanishes.
        root_of_beta = math.sqrt(2) * (F.logsigmoid(self.strength(hidden).to(dtype)) / 2).exp()
        return direction * root_of_beta.mT[..., None]


class PathContext(PlainContext):
    """Each token's reflector, and what a cache keeps for the next one.

    A cache holds the keys as they are, every token's reflector and what it was made from, all per column, so that a
    rollback is exact; and apart from them the keys as the next token sees them. Those are made anew after a rollback.
    """

    def __init__(self, chunk: Chunk, networks: nn.ModuleList) -> None:
        super().__init__(chunk)
        self.networks = networks
        self.predecessors = None
        if self.key_valid is not None:
            self.predecessors = predecessors(self.key_valid, WINDOW - 1)[:, chunk.offset :]

    def attend(self, layer: int, hidden: Tensor, projected: Projected) -> Tensor:
        cache = self.chunk.cache
        reflector = self._reflectors(layer, hidden)
        query, key, value = (x.transpose(1, 2) for x in projected[:3])
        seen = None
        if cache is not None:
            seen = self._seen(cache, layer)
            _, value = cache.append(layer, key, value)
            cache.extend("reflector", layer, reflector)
        out, seen = path_attention(query, key, value, reflector, seen, key_valid=self.key_valid)
        if cache is not None:
            cache.derived[layer] = seen
        return out.transpose(1, 2)

    def _reflectors(self, layer: int, hidden: Tensor) -> Float[Tensor, "batch kv_heads seq head_dim"]:
        network = cast(Reflectors, self.networks[layer])
        window = self._window(layer, network.features(hidden))
        reflector = network.reflectors(hidden, window, self.chunk.wide)
        if self.key_valid is None:
            return reflector
        # Padding reflects nothing.
        return torch.where(self.key_valid[:, None, self.chunk.offset :, None], reflector, 0.0)

    def _window(self, layer: int, features: Tensor) -> list[Float[Tensor, "batch kv_heads seq head_dim"]]:
        """The features of each token and of the tokens before it, the earliest first."""
        cache, seq, before = self.chunk.cache, features.shape[2], WINDOW - 1
        source = features if cache is None else cache.extend("features", layer, features)
        if self.predecessors is not None:
            return [*(_at(source, column) for column in self.predecessors.unbind(-1)), features]
        recent = source[:, :, -(seq + before) :]
        filled = F.pad(recent, (0, 0, seq + before - recent.shape[2], 0))
        return [*(filled[:, :, i : i + seq] for i in range(before)), features]

    def _seen(self, cache: Cache, layer: int) -> Tensor | None:
        """The cached keys rewritten up to the last of them."""
        if not cache.length or layer in cache.derived:
            return cache.derived.get(layer)
        key = cache.keys[layer][:, :, : cache.length]
        return rewritten_keys(key, cache.extras["reflector", layer][:, :, : cache.length])


def predecessors(valid: Bool[Tensor, "batch columns"], count: int) -> Int[Tensor, "batch columns count"]:
    """The columns of the last tokens before each column, padding skipped, the earliest first; -1: there is none.

    >>> predecessors(torch.tensor([[True, False, True, True]]), 2).tolist()
    [[[-1, -1], [-1, 0], [-1, 0], [0, 2]]]
    """
    columns = torch.arange(valid.shape[1], device=valid.device)
    last = torch.where(valid, columns, -1).cummax(1).values
    before = F.pad(last[:, :-1], (1, 0), value=-1)
    found = [before]
    for _ in range(count - 1):
        further = before.gather(1, found[0].clamp(min=0))
        found.insert(0, torch.where(found[0] < 0, -1, further))
    return torch.stack(found, dim=-1)


def _at(
    source: Float[Tensor, "batch kv_heads columns head_dim"], column: Int[Tensor, "batch seq"]
) -> Float[Tensor, "batch kv_heads seq head_dim"]:
    """Rows of the given columns; zero for column -1."""
    index = column.clamp(min=0)[:, None, :, None].expand(-1, source.shape[1], -1, source.shape[3])
    return torch.where(column[:, None, :, None] < 0, 0.0, source.gather(2, index))
