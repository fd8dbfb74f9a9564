"""The operators of theorem 1 and random texts to try them on.

Operators are read off the library itself, as matrices: the images of the basis vectors under ``rotate``. A text is a
list of units, a unit a (tokens, dim) tensor of input embeddings. Everything is float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import contentrope as cr
from contentrope.address import ContentAddress, sum_by_unit
from contentrope.rotary import PositionRotations, Rotation, inverse_frequencies, rotate, rotation_of
from contentrope.units import Units

HEADS, HEAD_DIM = 2, 8
DIM = HEADS * HEAD_DIM
LONGEST = 5
TOLERANCE = 1e-12
MOVED = 1e-3

Text = list[Tensor]
Token = tuple[int, int]
"""A unit of a text and a position in it."""


@dataclass(frozen=True)
class Pieces:
    """The method's three maps: position to rotation, content to address, and the pairing of dimensions."""

    rotary: cr.RotaryConfig
    rotations: PositionRotations
    address: ContentAddress

    def units(self, text: Text) -> Units:
        ends = torch.cat([torch.arange(len(unit)) == len(unit) - 1 for unit in text])[None]
        return cr.segment(torch.zeros(ends.shape, dtype=torch.int64), cr.Boundaries(ends), max_length=LONGEST)

    def at(self, positions: Tensor, bound: int) -> Rotation:
        return self.rotations.at(positions, torch.float64, bound=bound)

    def angles_by_token(self, text: Text, units: Units, slot: Tensor) -> Tensor:
        local = self.at(units.local, LONGEST)
        by_head = torch.cat(text)[None].unflatten(-1, (HEADS, HEAD_DIM))
        total, tokens, _ = sum_by_unit(rotate(by_head, local, self.rotary.pairs).flatten(-2), units, slot)
        angles = self.address(total, tokens)
        return angles[0, slot[0]][None]

    def content(self, text: Text) -> Rotation:
        """A(i, e) of every token: the method."""
        units = self.units(text)
        return self.at(units.local, LONGEST).then(rotation_of(self.angles_by_token(text, units, units.unit)))

    def per_token(self, text: Text) -> Rotation:
        """Not the method: every token has an address of its own instead of its unit's."""
        units = self.units(text)
        alone = torch.arange(units.seq_length)[None]
        return self.at(units.local, LONGEST).then(rotation_of(self.angles_by_token(text, units, alone)))

    def global_rope(self, text: Text) -> Rotation:
        tokens = sum(len(unit) for unit in text)
        return self.at(torch.arange(tokens)[None], tokens)

    def one_step(self) -> Tensor:
        """The matrix of R_1, per head; the theorem's Rot."""
        return self.matrices(self.at(torch.tensor([[1]]), 2))[0]

    def matrices(self, rotation: Rotation) -> Tensor:
        """(tokens, heads, head_dim, head_dim): column n is where basis vector n goes."""
        tokens = rotation.cos.shape[1]
        basis = torch.eye(HEAD_DIM, dtype=torch.float64)
        repeated = basis[:, None].expand(HEAD_DIM, HEADS, HEAD_DIM).repeat(tokens, 1, 1)[None]
        each = Rotation(*(part.repeat_interleave(HEAD_DIM, dim=1) for part in (rotation.cos, rotation.sin)))
        images = rotate(repeated, each, self.rotary.pairs)[0].view(tokens, HEAD_DIM, HEADS, HEAD_DIM)
        return images.permute(0, 2, 3, 1)


def column(text: Text, token: Token) -> int:
    unit, position = token
    return sum(len(u) for u in text[:unit]) + position


def operator(addresses: Tensor, text: Text, key: Token, query: Token) -> Tensor:
    """P of the pair: A(query)^-1 A(key), per head."""
    return torch.linalg.inv(addresses[column(text, query)]) @ addresses[column(text, key)]


def descriptor(pieces: Pieces, unit: Tensor) -> Tensor:
    """Equation (1) word by word: the mean of R_i x_i, with powers of one matrix."""
    one_step = pieces.one_step()
    rotated = [torch.linalg.matrix_power(one_step, i) @ token.view(HEADS, HEAD_DIM, 1) for i, token in enumerate(unit)]
    return torch.stack(rotated).mean(0).flatten()


def make_pieces(seed: int, **rotary: Any) -> Pieces:
    config = cr.RotaryConfig(**rotary)
    torch.manual_seed(seed)
    address = ContentAddress(DIM, HEADS, config.pair_count(HEAD_DIM)).double()
    with torch.no_grad():
        # A fresh map is zero: every unit would have the address I, and nothing could go wrong.
        for parameter in address.parameters():
            parameter.normal_(std=0.7)
    address.requires_grad_(False)
    return Pieces(config, PositionRotations(inverse_frequencies(config, HEADS, HEAD_DIM)), address)


seeds = st.integers(0, 2**32 - 1)
all_pieces = st.builds(
    make_pieces,
    seeds,
    base=st.sampled_from([3.0, 100.0, 10000.0]),
    pairs=st.sampled_from(["half", "interleaved"]),
    frequencies=st.sampled_from(["per_head", "model_wide"]),
    fraction=st.sampled_from([0.5, 1.0]),
)


@st.composite
def texts(draw: st.DrawFn, least: int = 1, most: int = 5) -> Text:
    generator = torch.Generator().manual_seed(draw(seeds))
    lengths = draw(st.lists(st.integers(1, LONGEST), min_size=least, max_size=most))
    return [torch.randn(length, DIM, generator=generator, dtype=torch.float64) for length in lengths]


def any_token(text: Text, unit: int) -> st.SearchStrategy[Token]:
    return st.tuples(st.just(unit), st.integers(0, len(text[unit]) - 1))


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())
