"""Theorem 1, part 1: within a unit, local RoPE. On random texts, beside a scheme that violates it."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.theorem.pieces import (
    DIM,
    HEAD_DIM,
    MOVED,
    TOLERANCE,
    Pieces,
    Text,
    all_pieces,
    any_token,
    distance,
    make_pieces,
    operator,
    texts,
)


@given(all_pieces, texts(), st.data())
def test_within_a_unit_the_operator_is_local_rope(pieces: Pieces, text: Text, data: st.DataObject) -> None:
    unit = data.draw(st.integers(0, len(text) - 1))
    (_, i), (_, j) = data.draw(any_token(text, unit)), data.draw(any_token(text, unit))
    addresses = pieces.matrices(pieces.content(text))
    one_step = pieces.one_step()
    expected = torch.linalg.matrix_power(one_step, i - j)
    assert distance(operator(addresses, text, (unit, i), (unit, j)), expected) <= TOLERANCE


@given(all_pieces, texts(), st.data())
def test_addresses_per_token_break_local_rope(pieces: Pieces, text: Text, data: st.DataObject) -> None:
    unit = data.draw(st.integers(0, len(text) - 1))
    assume(len(text[unit]) > 1)
    addresses = pieces.matrices(pieces.per_token(text))
    one_step = pieces.one_step()
    assert distance(operator(addresses, text, (unit, 1), (unit, 0)), one_step) > MOVED


@given(all_pieces, texts())
def test_addresses_are_orthogonal(pieces: Pieces, text: Text) -> None:
    addresses = pieces.matrices(pieces.content(text))
    identity = torch.eye(HEAD_DIM, dtype=torch.float64).expand_as(addresses)
    assert distance(addresses @ addresses.transpose(-1, -2), identity) <= TOLERANCE


def test_operators_between_neighbouring_units_differ() -> None:
    """Without this, a map that gives every unit the same address would pass all the other tests of the theorem."""
    pieces = make_pieces(0)
    text = list(torch.randn(6, 3, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    addresses = pieces.matrices(pieces.content(text))
    found = [operator(addresses, text, (a, 0), (b, 0)) for a, b in pairwise(range(len(text)))]
    assert all(distance(a, b) > MOVED for a, b in pairwise(found))
