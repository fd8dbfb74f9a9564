"""``random``: every completed unit gets an address drawn from N(0, 1), anew for every call. The paper's control."""

from __future__ import annotations

import torch
from torch import nn

from contentrope.address import random_angles
from contentrope.config import ModelConfig
from contentrope.frames import AddressedFrame, Chunk
from contentrope.schemes.addressed import AddressOptions, UnitReader
from contentrope.schemes.base import read_options


class Random(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.reader = UnitReader(config, read_options("random", AddressOptions, config.options))

    def frame(self, chunk: Chunk) -> AddressedFrame:
        reading = self.reader.read(chunk)
        if not reading.completes_any(chunk):
            return self.reader.frame(chunk, reading, angles=None)

        shape = (self.config.key_heads, self.config.pair_count)
        if self.training and chunk.cache is None:
            # Nothing continues such a call, so the draw need not be repeatable, and torch's own is the faster one.
            angles = torch.randn(*chunk.ids.shape, *shape, dtype=chunk.wide, device=chunk.ids.device)
        else:
            slots = torch.arange(chunk.ids.shape[1], device=chunk.ids.device)
            angles = random_angles(chunk.state.seed, reading.before.next_unit + slots, *shape).to(chunk.wide)
        return self.reader.frame(chunk, reading, angles)
