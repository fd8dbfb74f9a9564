"""Theorem 1, part 3: one fixed family, however long the text. On random texts, beside a scheme that violates it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import contentrope as cr
from contentrope.rotary import rotation_of
from tests.support import VOCABULARY, lively_model
from tests.theorem.model import first_layer_scores, some_unit, written
from tests.theorem.pieces import (
    DIM,
    HEAD_DIM,
    HEADS,
    LONGEST,
    MOVED,
    TOLERANCE,
    Pieces,
    Text,
    all_pieces,
    any_token,
    descriptor,
    distance,
    make_pieces,
    operator,
    seeds,
    texts,
)


def phi(pieces: Pieces, z: Tensor) -> Tensor:
    """Equation (2) word by word: LN, W, and 2x2 rotations put where the pairs are."""
    norm, project = pieces.address.norm, pieces.address.project
    centred = z - z.mean()
    normed = centred / (centred.square().mean() + norm.eps).sqrt() * norm.weight + norm.bias
    angles = (project.weight @ normed + project.bias).view(HEADS, -1)
    pairs = angles.shape[1]
    matrix = torch.eye(HEAD_DIM, dtype=torch.float64).repeat(HEADS, 1, 1)
    for pair in range(pairs):
        a, b = (pair, pair + pairs) if pieces.rotary.pairs == "half" else (2 * pair, 2 * pair + 1)
        cos, sin = angles[:, pair].cos(), angles[:, pair].sin()
        matrix[:, a, a], matrix[:, a, b], matrix[:, b, a], matrix[:, b, b] = cos, -sin, sin, cos
    return matrix


@given(all_pieces, texts(2, 6), st.data())
def test_every_operator_is_made_of_positions_and_descriptors_alone(
    pieces: Pieces, text: Text, data: st.DataObject
) -> None:
    """Rebuilt from (i, j, z, z') without the text: R_j^-1 phi(z')^-1 phi(z) R_i."""
    key = data.draw(st.integers(0, len(text) - 1).flatmap(lambda unit: any_token(text, unit)))
    query = data.draw(st.integers(0, len(text) - 1).flatmap(lambda unit: any_token(text, unit)))
    one_step = pieces.one_step()
    local = [torch.linalg.matrix_power(one_step, i) for i in range(LONGEST)]
    of_key, of_query = (phi(pieces, descriptor(pieces, text[unit])) for unit, _ in (key, query))
    member = torch.linalg.inv(of_query @ local[query[1]]) @ of_key @ local[key[1]]
    found = operator(pieces.matrices(pieces.content(text)), text, key, query)
    assert distance(found, member) <= TOLERANCE


def small_model(pairs: Any, backend: str = "auto") -> tuple[cr.Transformer, Pieces]:
    """A model of these tests' dimensions, and the pieces it is made of."""
    rotary = cr.RotaryConfig(pairs=pairs)
    model = lively_model("content", backend=backend, dim=DIM, heads=HEADS, layers=1, rotary=rotary)
    model.requires_grad_(False)
    return model, Pieces(model.config.rotary, model.scheme.reader.rotations, model.scheme.address)


layouts = st.sampled_from(["half", "interleaved"])


@given(st.lists(some_unit, min_size=1, max_size=5), layouts)
def test_the_model_gives_its_units_these_addresses(units: list[list[int]], pairs: Any) -> None:
    """The addresses a model notes in its cache are equations (1) and (2) of its input embeddings."""
    model, pieces = small_model(pairs)
    ids, columns = written(units)
    cache = model.new_cache(1)
    model(ids, cache=cache)
    found = pieces.matrices(rotation_of(cache.columns.angles[0][:, : cache.length]))
    for span in columns:
        expected = phi(pieces, descriptor(pieces, model.embedding.weight[ids[0, span]]))
        assert distance(found[span], expected.expand_as(found[span])) <= TOLERANCE


@pytest.mark.parametrize("backend", ["reference", "tiled"])
@given(some_unit, some_unit, layouts)
def test_the_model_scores_with_these_operators(
    backend: str, key_unit: list[int], query_unit: list[int], pairs: Any
) -> None:
    """The score of a query with an earlier unit is q' R_j^-1 phi(z')^-1 phi(z) R_i k; phi(z') only where it closes."""
    model, pieces = small_model(pairs, backend)
    of_key, of_query = (
        phi(pieces, descriptor(pieces, model.embedding.weight[torch.tensor(unit)])) for unit in (key_unit, query_unit)
    )
    block, powers = model.blocks[0], [torch.linalg.matrix_power(pieces.one_step(), i) for i in range(7)]
    projected = block.query_key_value(block.attention_norm(model.embedding.weight)).view(VOCABULARY, 3, HEADS, HEAD_DIM)
    keys = [of_key @ powers[i] @ projected[token, 1, :, :, None] for i, token in enumerate(key_unit)]
    queries = [powers[j] @ projected[token, 0, :, :, None] for j, token in enumerate(query_unit)]
    queries[-1] = of_query @ queries[-1]
    products = torch.stack([torch.stack([(q * k).sum((1, 2)) for k in keys]) for q in queries])
    expected = products.permute(2, 0, 1) / HEAD_DIM**0.5
    found = first_layer_scores(model, [key_unit, query_unit], 0, 1)
    assert distance(found, expected - expected[..., :1]) <= TOLERANCE


def count_distinct(operators: Tensor) -> int:
    flat = operators.flatten(1)
    return len(torch.unique((flat * 1e6).round(), dim=0))


def all_operators(addresses: Tensor) -> Tensor:
    return (addresses[:, None].transpose(-1, -2) @ addresses[None]).flatten(0, 1)


@given(seeds, texts(1, 3), st.integers(2, 4))
def test_more_units_add_no_operators_but_more_global_positions_do(seed: int, text: Text, times: int) -> None:
    # A low base keeps neighbouring powers of the rotation apart, so that they can be counted.
    pieces = make_pieces(seed, base=3.0)
    tokens = sum(len(unit) for unit in text)
    content, global_rope = (
        [count_distinct(all_operators(pieces.matrices(scheme(text * n)))) for n in (1, times)]
        for scheme in (pieces.content, pieces.global_rope)
    )
    assert content[1] == content[0]
    assert global_rope == [2 * tokens - 1, 2 * times * tokens - 1]


@given(all_pieces, st.integers(1, 60))
def test_local_positions_stay_bounded_without_any_end(pieces: Pieces, tokens: int) -> None:
    """The maximum length ends units that nothing else ends, so i and j stay in 0..L-1."""
    no_ends = torch.zeros(1, tokens, dtype=torch.bool)
    units = cr.segment(torch.zeros(1, tokens, dtype=torch.int64), cr.Boundaries(no_ends), max_length=LONGEST)
    assert units.local.tolist() == [[t % LONGEST for t in range(tokens)]]
    assert len(torch.unique(units.local)) == min(tokens, LONGEST)


@given(st.integers(2, 12), st.integers(1, 12))
def test_longer_contexts_give_global_rope_rotations_never_seen(length: int, extra: int) -> None:
    pieces = make_pieces(0, base=3.0)
    seen = pieces.matrices(pieces.at(torch.arange(length)[None], length))
    longer = pieces.matrices(pieces.at(torch.arange(length + extra)[None], length + extra))
    gaps = [distance(longer[-1], known) for one in seen for known in (one, torch.linalg.inv(one))]
    assert min(gaps) > MOVED
