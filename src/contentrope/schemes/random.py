"""``random``: every completed unit gets an address drawn from N(0, 1), anew for every call. The paper's control."""

from __future__ import annotations

import torch

from contentrope.address import random_angles
from contentrope.config import ModelConfig
from contentrope.context import AddressedContext, Chunk
from contentrope.schemes.addressed import CompetitionOptions, UnitReader
from contentrope.schemes.base import Scheme


class Random(Scheme):
    name = "random"
    Options = CompetitionOptions
    reads_units = knows_memory_units = draws_at_random = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.shape = (config.key_heads, config.pair_count)
        self.reader = UnitReader(config, self.options)

    def context(self, chunk: Chunk) -> AddressedContext:
        reading = self.reader.read(chunk)
        if not reading.needs_addresses(chunk):
            return self.reader.context(chunk, reading, angles=None)
        if reading.leaving is not None and chunk.cache is not None:
            units = chunk.cache.fact("unit", reading.leaving.begin, reading.leaving.end)
            angles = random_angles(chunk.state.seed, units, *self.shape).to(chunk.wide)
        elif self.training and chunk.cache is None:
            # Nothing continues such a call, so the draw need not be repeatable, and torch's own is the faster one.
            angles = torch.randn(*chunk.ids.shape, *self.shape, dtype=chunk.wide, device=chunk.ids.device)
        else:
            slots = torch.arange(chunk.ids.shape[1], device=chunk.ids.device)
            angles = random_angles(chunk.state.seed, reading.before.next_unit + slots, *self.shape).to(chunk.wide)
        return self.reader.context(chunk, reading, angles)
