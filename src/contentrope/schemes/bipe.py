"""``bipe``: BiPE-RoPE (He et al., 2024): learned positions inside the unit, rotary ones by unit number."""

from __future__ import annotations

from torch import nn

from contentrope.config import ModelConfig
from contentrope.frames import Chunk, PlainFrame
from contentrope.rotary import PositionRotations
from contentrope.schemes.base import frequencies, read_options, read_units, segmenter_of
from contentrope.schemes.positional import NoOptions


class Bipe(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        read_options("bipe", NoOptions, config.options)
        self.inside_unit = nn.Embedding(config.max_unit_length, config.dim)
        # As small as the token embeddings they are added to; torch's default would drown those.
        nn.init.normal_(self.inside_unit.weight, std=0.02)
        self.segmenter = segmenter_of(config)
        self.rotations = PositionRotations(frequencies(config))

    def frame(self, chunk: Chunk) -> PlainFrame:
        units, _, after = read_units(self.segmenter, chunk)
        bound = chunk.offset + chunk.ids.shape[1]
        by_unit = self.rotations.at(units.unit, chunk.wide, bound=bound)
        return PlainFrame(chunk, by_unit, added=self.inside_unit(units.local), units=(units, after))
