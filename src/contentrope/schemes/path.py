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
from jaxtyping import Float
from torch import Tensor, nn

from contentrope.config import ModelConfig
from contentrope.frames import Chunk, PathFrame
from contentrope.frames.path import WINDOW, ReflectorNetwork
from contentrope.schemes.base import read_options
from contentrope.schemes.positional import NoOptions

RANK = 32
"""Of the map from a layer's input to w, as in the authors' code."""


class Path(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        read_options("path", NoOptions, config.options)
        self.networks = nn.ModuleList(Reflectors(config) for _ in range(config.layers))

    def frame(self, chunk: Chunk) -> PathFrame:
        return PathFrame(chunk, cast(Sequence[ReflectorNetwork], list(self.networks)))


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
        return self.expand(self.reduce(hidden)).unflatten(-1, self.by_head).transpose(1, 2)

    def reflectors(
        self,
        hidden: Float[Tensor, "batch seq dim"],
        window: Sequence[Float[Tensor, "batch kv_heads seq head_dim"]],
        dtype: torch.dtype,
    ) -> Float[Tensor, "batch kv_heads seq head_dim"]:
        mixed = sum(tap * step.to(dtype) for tap, step in zip(self.taps.to(dtype), window, strict=True))
        direction = F.normalize(F.silu(cast(Tensor, mixed)), dim=-1)
        # sqrt(2 sigmoid(x)); taken by logarithms its gradient stays finite where the sigmoid vanishes.
        root_of_beta = math.sqrt(2) * (F.logsigmoid(self.strength(hidden).to(dtype)) / 2).exp()
        return direction * root_of_beta.mT[..., None]
