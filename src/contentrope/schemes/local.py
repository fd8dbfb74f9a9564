"""``local``: positions inside the unit and no address (R_e = I). Shows what the address is worth."""

from __future__ import annotations

from torch import nn

from contentrope.config import ModelConfig
from contentrope.frames import AddressedFrame, Chunk
from contentrope.schemes.addressed import Options, UnitReader
from contentrope.schemes.base import read_options


class Local(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.reader = UnitReader(config, read_options("local", Options, config.options))

    def frame(self, chunk: Chunk) -> AddressedFrame:
        return self.reader.frame(chunk, self.reader.read(chunk), angles=None)
