"""Theorem 1, part 2: other units do not matter; beside schemes that violate it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import contentrope as cr
from tests.support import lively_model
from tests.theorem.model import first_layer_scores, some_unit, some_units, written
from tests.theorem.pieces import MOVED, TOLERANCE, Pieces, Text, all_pieces, any_token, distance, operator, texts


@st.composite
def edits(draw: st.DrawFn) -> tuple[Text, Text, list[int]]:
    """Two fixed units among others, then the same two among others again: added, dropped and in any order.

    Gives both texts and, for the two fixed units, their number in the second text.
    """
    fixed = draw(texts(2, 2))
    others, new = draw(texts(0, 4)), draw(texts(0, 4))
    kept = [other for other in others if draw(st.booleans())]
    first = [*fixed, *others]
    order = draw(st.permutations(range(2 + len(kept) + len(new))))
    pool = [*fixed, *kept, *new]
    return first, [pool[n] for n in order], [order.index(0), order.index(1)]


@given(all_pieces, edits(), st.data())
def test_other_units_do_not_change_the_operator(
    pieces: Pieces, edit: tuple[Text, Text, list[int]], data: st.DataObject
) -> None:
    before, after, moved_to = edit
    addresses_before, addresses_after = (pieces.matrices(pieces.content(text)) for text in (before, after))
    (_, i), (_, j) = data.draw(any_token(before, 0)), data.draw(any_token(before, 1))
    expected = operator(addresses_before, before, (0, i), (1, j))
    found = operator(addresses_after, after, (moved_to[0], i), (moved_to[1], j))
    assert distance(found, expected) <= TOLERANCE


@given(all_pieces, texts(2, 2), texts(1, 3), st.data())
def test_an_inserted_unit_changes_the_operator_of_global_rope(
    pieces: Pieces, fixed: Text, inserted: Text, data: st.DataObject
) -> None:
    after = [fixed[0], *inserted, fixed[1]]
    (_, i), (_, j) = data.draw(any_token(fixed, 0)), data.draw(any_token(fixed, 1))
    expected = operator(pieces.matrices(pieces.global_rope(fixed)), fixed, (0, i), (1, j))
    found = operator(pieces.matrices(pieces.global_rope(after)), after, (0, i), (len(after) - 1, j))
    assert distance(found, expected) > MOVED


# --- The whole model ---


@pytest.mark.parametrize("backend", ["reference", "tiled"])
@given(some_unit, some_unit, some_units, some_units, st.randoms(use_true_random=False))
def test_first_layer_scores_of_the_model_ignore_other_units(
    backend: str, key: list[int], query: list[int], before: list[list[int]], between: list[list[int]], random: Any
) -> None:
    """The model's own path: closing and open queries, keys of an earlier unit, any others before and between."""
    expected = first_layer_scores(lively_model("content", backend=backend), [key, query], 0, 1)
    random.shuffle(before)
    edited = [*before, key, *between, query]
    found = first_layer_scores(lively_model("content", backend=backend), edited, len(before), len(edited) - 1)
    assert distance(found, expected) <= TOLERANCE


@given(some_unit, some_unit, some_units)
def test_first_layer_scores_of_rope_depend_on_other_units(
    key: list[int], query: list[int], between: list[list[int]]
) -> None:
    expected = first_layer_scores(lively_model("rope"), [key, query], 0, 1)
    found = first_layer_scores(lively_model("rope"), [key, *between, query], 0, len(between) + 1)
    assert distance(found, expected) > MOVED


def first_layer_output(model: cr.Transformer, ids: Tensor) -> Tensor:
    outputs: list[Tensor] = []
    handle = model.blocks[0].register_forward_hook(lambda module, inputs, output: outputs.append(output))
    with torch.no_grad():
        model(ids)
    handle.remove()
    return outputs[0][0]


@pytest.mark.parametrize("options", [{}, {"competition": 1.0}], ids=["paper", "competition"])
@given(st.lists(some_unit, min_size=3, max_size=5), st.data())
def test_reordering_earlier_units_keeps_the_first_layer_but_moves_rope(
    options: dict[str, float], units: list[list[int]], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(units) - 1)))
    shuffled = [*(units[n] for n in order), units[-1]]
    last = written(units)[1][-1]
    model, rope = lively_model("content", options=options), lively_model("rope")
    original, moved = (first_layer_output(model, written(text)[0])[last] for text in (units, shuffled))
    assert distance(original, moved) <= TOLERANCE
    if shuffled != units:
        original, moved = (first_layer_output(rope, written(text)[0])[last] for text in (units, shuffled))
        assert distance(original, moved) > MOVED
