"""Theorem 1 with a near window of W tokens, as docs/method.md states it again: RoPE near, addresses far.

The relative operators are R^-d, d at most W and a unit, and R^-(W+j) phi(z) R^i: one fixed family, however many units
there are. Other units do not change the operator of a far pair; a near pair is RoPE's, so they move it apart.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import contentrope as cr
from contentrope.attention.pairs import near_among
from tests.support import VOCABULARY, lively_model
from tests.theorem.model import first_layer_scores, some_unit, some_units
from tests.theorem.pieces import (
    DIM,
    HEAD_DIM,
    HEADS,
    LONGEST,
    MOVED,
    TOLERANCE,
    Pieces,
    Text,
    Token,
    all_pieces,
    any_token,
    column,
    descriptor,
    distance,
    make_pieces,
    operator,
    seeds,
    texts,
)
from tests.theorem.test_fixed_family import count_distinct, phi

windows = st.integers(1, 12)


class Operators(NamedTuple):
    """Of all pairs of a text with a key not after its query."""

    near: Tensor
    """(queries, keys): whether the pair is."""
    by_position: Tensor
    """(tokens, heads, head_dim, head_dim), and the same of the others."""
    addressed: Tensor
    beyond_the_window: Tensor

    def of(self, key: int, query: int) -> Tensor:
        if self.near[query, key]:
            return torch.linalg.inv(self.by_position[query]) @ self.by_position[key]
        return torch.linalg.inv(self.beyond_the_window[query]) @ self.addressed[key]

    def all(self) -> Tensor:
        tokens = len(self.by_position)
        return torch.stack([self.of(s, t) for t in range(tokens) for s in range(t + 1)])


def windowed(pieces: Pieces, text: Text, window: int) -> Operators:
    units = pieces.units(text)
    far_query = pieces.at(window + units.local, window + LONGEST)
    columns = torch.arange(units.seq_length)
    return Operators(
        columns >= near_among(units, window).begin[0, :, None],
        *(pieces.matrices(r) for r in (pieces.global_rope(text), pieces.content(text), far_query)),
    )


def pair_of(operators: Operators, text: Text, key: Token, query: Token) -> Tensor:
    return operators.of(column(text, key), column(text, query))


@given(all_pieces, texts(), windows, st.data())
def test_within_a_unit_the_operator_is_local_rope(pieces: Pieces, text: Text, window: int, data: st.DataObject) -> None:
    """Part 1."""
    unit = data.draw(st.integers(0, len(text) - 1))
    j = data.draw(st.integers(0, len(text[unit]) - 1))
    i = data.draw(st.integers(0, j))
    found = pair_of(windowed(pieces, text, window), text, (unit, i), (unit, j))
    assert distance(found, torch.linalg.inv(torch.linalg.matrix_power(pieces.one_step(), j - i))) <= TOLERANCE


# --- Part 2 ---


@given(all_pieces, texts(2, 2), texts(1, 4), texts(0, 2), texts(0, 2), windows, st.data())
def test_other_units_do_not_change_the_operator_of_a_far_pair(
    pieces: Pieces, fixed: Text, filling: Text, before: Text, between: Text, window: int, data: st.DataObject
) -> None:
    text, edited = [fixed[0], *filling, fixed[1]], [*before, fixed[0], *between, *filling, fixed[1]]
    assume(len(fixed[0]) + sum(map(len, filling)) > window)
    (_, i), (_, j) = data.draw(any_token(fixed, 0)), data.draw(any_token(fixed, 1))
    expected = pair_of(windowed(pieces, text, window), text, (0, i), (len(text) - 1, j))
    found = pair_of(windowed(pieces, edited, window), edited, (len(before), i), (len(edited) - 1, j))
    assert distance(found, expected) <= TOLERANCE
    rope, moved = (pieces.matrices(pieces.global_rope(t)) for t in (text, edited))
    rope_before = operator(rope, text, (0, i), (len(text) - 1, j))
    rope_after = operator(moved, edited, (len(before), i), (len(edited) - 1, j))
    assert (distance(rope_before, rope_after) > MOVED) is bool(between)


@given(all_pieces, texts(2, 2), texts(1, 1), st.data())
def test_an_inserted_unit_moves_a_near_pair_apart(
    pieces: Pieces, fixed: Text, inserted: Text, data: st.DataObject
) -> None:
    """It is RoPE's, and so it stays as long as the pair is near."""
    (_, i), (_, j) = data.draw(any_token(fixed, 0)), data.draw(any_token(fixed, 1))
    after, window = [fixed[0], *inserted, fixed[1]], 2 * LONGEST
    expected = pair_of(windowed(pieces, fixed, window), fixed, (0, i), (1, j))
    found = pair_of(windowed(pieces, after, window), after, (0, i), (2, j))
    assert distance(found, expected) > MOVED
    apart = len(fixed[0]) + len(inserted[0]) + j - i
    assert distance(found, torch.linalg.inv(torch.linalg.matrix_power(pieces.one_step(), apart))) <= TOLERANCE


# --- Part 3 ---


@given(all_pieces, texts(2, 6), windows, st.data())
def test_every_operator_is_of_the_family(pieces: Pieces, text: Text, window: int, data: st.DataObject) -> None:
    """Rebuilt from a bounded distance, or from (i, j, z), without the text."""
    operators, one_step = windowed(pieces, text, window), pieces.one_step()
    unit = data.draw(st.integers(0, len(text) - 1))
    _, j = data.draw(any_token(text, unit))
    for earlier in range(unit + 1):
        _, i = data.draw(any_token(text, earlier))
        key, query = column(text, (earlier, i)), column(text, (unit, j))
        if key > query:
            continue
        if operators.near[query, key]:
            assert query - key <= window + LONGEST - 1
            member = torch.linalg.inv(torch.linalg.matrix_power(one_step, query - key))
        else:
            of_key = phi(pieces, descriptor(pieces, text[earlier])) @ torch.linalg.matrix_power(one_step, i)
            member = torch.linalg.inv(torch.linalg.matrix_power(one_step, window + j)) @ of_key
        assert distance(operators.of(key, query), member) <= TOLERANCE


@settings(max_examples=12)
@given(seeds, texts(2, 3), st.integers(1, 6))
def test_more_units_add_no_operators_but_more_global_positions_do(seed: int, text: Text, window: int) -> None:
    # A low base keeps neighbouring powers of the rotation apart, so that they can be counted.
    pieces, tokens = make_pieces(seed, base=3.0), sum(map(len, text))
    enough = 2 + -(-(window + LONGEST) // tokens)  # repetitions, with which every pair of the family is there
    found = [count_distinct(windowed(pieces, text * n, window).all()) for n in (enough, enough + 1)]
    assert found[0] == found[1]
    for n, wide in ((enough, enough * tokens), (enough + 1, (enough + 1) * tokens)):  # all is near: RoPE
        assert count_distinct(windowed(pieces, text * n, wide).all()) == n * tokens


# --- The whole model ---

WINDOW = 6
FILLING = [[3, 1, 4, 0], [1, 5, 0]]
"""More than a window: what lies before it is far from what comes after."""


def windowed_model(backend: str = "auto", window: int = WINDOW) -> cr.Transformer:
    model = lively_model(
        "content", backend=backend, dim=DIM, heads=HEADS, layers=1, options={"window": window, "competition": 1.0}
    )
    return model.requires_grad_(False)


@pytest.mark.parametrize("backend", ["reference", "tiled"])
@settings(max_examples=20)
@given(some_unit, some_unit, some_units, some_units)
def test_first_layer_scores_of_a_far_pair_ignore_other_units(
    backend: str, key: list[int], query: list[int], before: list[list[int]], between: list[list[int]]
) -> None:
    expected = first_layer_scores(windowed_model(backend), [key, *FILLING, query], 0, 3)
    edited = [*before, key, *between, *FILLING, query]
    found = first_layer_scores(windowed_model(backend), edited, len(before), len(edited) - 1)
    assert distance(found, expected) <= TOLERANCE


@settings(max_examples=20)
@given(some_unit, some_unit, some_unit)
def test_first_layer_scores_of_a_near_pair_are_those_of_rope(
    key: list[int], query: list[int], between: list[int]
) -> None:
    model, rope = windowed_model(window=20), lively_model("rope", dim=DIM, heads=HEADS, layers=1)
    weights = model.state_dict()
    rope.load_state_dict({name: weights[name] for name in rope.state_dict()})
    found = [
        (first_layer_scores(windowed_model(window=20), text, 0, len(text) - 1), first_layer_scores(rope, text, 0, -1))
        for text in ([key, query], [key, between, query])
    ]
    assert all(distance(ours, theirs) <= TOLERANCE for ours, theirs in found)
    assert distance(found[0][0], found[1][0]) > MOVED


@pytest.mark.parametrize("backend", ["reference", "tiled"])
@settings(max_examples=20)
@given(some_unit, some_unit)
def test_the_model_scores_far_pairs_with_these_operators(
    backend: str, key_unit: list[int], query_unit: list[int]
) -> None:
    """q' R^-(W+j) phi(z) R^i k, of closing queries too."""
    model = windowed_model(backend)
    pieces = Pieces(model.config.rotary, model.scheme.reader.rotations, model.scheme.address)
    of_key = phi(pieces, descriptor(pieces, model.embedding.weight[torch.tensor(key_unit)]))
    block, one_step = model.blocks[0], pieces.one_step()
    powers = [torch.linalg.matrix_power(one_step, i) for i in range(WINDOW + 7)]
    projected = block.query_key_value(block.attention_norm(model.embedding.weight)).view(VOCABULARY, 3, HEADS, HEAD_DIM)
    keys = [of_key @ powers[i] @ projected[token, 1, :, :, None] for i, token in enumerate(key_unit)]
    queries = [powers[WINDOW + j] @ projected[token, 0, :, :, None] for j, token in enumerate(query_unit)]
    products = torch.stack([torch.stack([(q * k).sum((1, 2)) for k in keys]) for q in queries])
    expected = products.permute(2, 0, 1) / HEAD_DIM**0.5
    found = first_layer_scores(model, [key_unit, *FILLING, query_unit], 0, 3)
    assert distance(found, expected - expected[..., :1]) <= TOLERANCE
