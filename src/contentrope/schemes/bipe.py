"""``bipe``: BiPE-RoPE (He et al., 2024): learned positions inside the unit, rotary ones by unit number."""

from __future__ import annotations

from torch import nn

from contentrope.config import ModelConfig
from contentrope.context import Chunk, PlainContext
from contentrope.rotary import PositionRotations
from contentrope.schemes.base import Scheme, frequencies, segmenter_of


class Bipe(Scheme):
    name = "bipe"
    reads_units = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.inside_unit = nn.Embedding(config.max_unit_length, config.dim)
        # As small as the token embeddings they are added to; torch's default would drown those.
        nn.init.normal_(self.inside_unit.weight, std=0.02)
        self.segmenter = segmenter_of(config)
        self.rotations = PositionRotations(frequencies(config))

    def context(self, chunk: Chunk) -> PlainContext:
        units, _, after = chunk.read_units(self.segmenter)
        by_unit = self.rotations.at(units.unit, chunk.wide, bound=chunk.columns)
        return PlainContext(chunk, by_unit, added=self.inside_unit(units.local), units=(units, after))
