"""``nope``: no positions at all; order is known from the causal mask alone."""

from __future__ import annotations

from torch import nn

from contentrope.config import ModelConfig
from contentrope.frames import Chunk, PlainFrame
from contentrope.schemes.base import read_options
from contentrope.schemes.positional import NoOptions


class Nope(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        read_options("nope", NoOptions, config.options)

    def frame(self, chunk: Chunk) -> PlainFrame:
        return PlainFrame(chunk)
