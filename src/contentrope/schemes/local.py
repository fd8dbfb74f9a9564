"""``local``: positions inside the unit and no address (R_e = I). Shows what the address is worth."""

from __future__ import annotations

from contentrope.config import ModelConfig
from contentrope.context import AddressedContext, Chunk
from contentrope.schemes.addressed import CompetitionOptions, UnitReader
from contentrope.schemes.base import Scheme


class Local(Scheme):
    name = "local"
    Options = CompetitionOptions
    reads_units = knows_memory_units = shares_texts = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.reader = UnitReader(config, self.options)

    def context(self, chunk: Chunk) -> AddressedContext:
        return self.reader.context(chunk, self.reader.read(chunk), angles=None)
