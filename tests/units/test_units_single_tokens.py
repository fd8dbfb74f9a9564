"""One token at a time: the same as many at once, in few operations, and with no GPU sync where there is a host copy."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contentrope.errors import InputError
from contentrope.units import Boundaries, FixedLength, Segmenter, Terminators, TextRule
from tests.units.segmentations import VOCABULARY, CountOperations, cases, quick, same_state, same_units


@quick
@given(cases(least=2))
def test_the_one_token_path_equals_the_general_one(case):
    case.valid = None
    segmenter = Segmenter(Terminators({0, 5}), max_length=case.max_length, reader=case.reader)
    head, tail = case.columns(0, -1), case.columns(-1, None)
    _, state = segmenter.advance(segmenter.initial(len(case.ids)), case.ids[:, :-1], **head)
    last = case.ids[:, -1:]
    lean = segmenter.advance(state, last, **tail)
    told = segmenter.advance(state, last, known=last[:, 0].tolist(), **tail)
    tail["valid"] = torch.ones_like(last, dtype=torch.bool)  # a mask, even of ones, takes the general path
    general = segmenter.advance(state, last, **tail)
    for units, after in (lean, told):
        same_units(units, general[0])
        same_state(after, general[1])
    assert told[0].ends_any in (None, bool(told[0].closes.any()))
    assert told[1].most_open >= int(told[1].next_local.max())


@quick
@given(cases(least=1), st.integers(0, 24))
def test_where_open_units_began_is_what_the_device_would_answer(case, chunk):
    case.valid = None
    segmenter = Segmenter(Terminators({0, 5}), max_length=case.max_length, reader=case.reader)
    state, edges = segmenter.initial(len(case.ids)), range(min(chunk, case.ids.shape[1]), case.ids.shape[1])
    spans = [slice(0, edges.start), *(slice(t, t + 1) for t in edges)]
    for span in spans:
        ids = case.ids[:, span]
        known = ids[:, 0].tolist() if ids.shape[1] == 1 else None
        _, state = segmenter.advance(state, ids, known=known, **case.columns(span.start, span.stop))
        assert state.open_from() == replace(state, opened=None).open_from()


@pytest.mark.parametrize("rows", [[1], [1, 2], [2, 1, 1], [0, 2], [0, 1, 2], []], ids=str)
def test_rows_that_are_kept_say_nothing_of_those_that_are_not(rows):
    segmenter = Segmenter(Terminators({0}), max_length=5)
    _, state = segmenter.advance(segmenter.initial(3), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 1], [1, 0, 1, 1]]))
    # The first row's unit is nearly as long as it may be, so where units began is read back here.
    _, state = segmenter.advance(state, torch.tensor([[0], [1], [1]]), known=[0, 1, 1])
    _, state = segmenter.advance(state, torch.tensor([[1], [1], [1]]), known=[1, 1, 1])
    kept = state.reorder(torch.tensor(rows, dtype=torch.int64))
    starts = [[5], [3], [2]]
    assert kept.start.tolist() == [starts[row] for row in rows]
    assert kept.open_from() == min([starts[row][0] for row in rows], default=kept.columns)
    assert all(kept.most_open >= local for (local,) in kept.next_local.tolist())


def test_decoding_a_row_alone_knows_where_its_unit_began():
    segmenter = Segmenter(Terminators({0}), max_length=3)
    _, state = segmenter.advance(segmenter.initial(1), torch.tensor([[1, 0, 1]]))
    found = [state.opened]
    for token in (0, 1, 1, 1, 1):
        _, state = segmenter.advance(state, torch.tensor([[token]]), known=[token])
        found.append(state.opened)
    assert found == [None, 4, 4, 4, 7, 7]  # prefill reads nothing back; the longest unit ends at the seventh token


def test_only_terminators_are_known_by_their_id():
    for rule in (FixedLength(2), Boundaries(torch.tensor([[False, True]])), TextRule("line", VOCABULARY)):
        segmenter = Segmenter(rule)
        _, state = segmenter.advance(segmenter.initial(1), torch.tensor([[1]]))
        read_back, told = (segmenter.advance(state, torch.tensor([[2]]), known=known)[0] for known in (None, [2]))
        same_units(told, read_back)


@pytest.mark.parametrize(("ids", "known"), [([[1, 2]], [1, 2]), ([[1], [2]], [1])], ids=["two tokens", "a row less"])
def test_known_ids_must_be_one_per_row(ids, known):
    segmenter = Segmenter(Terminators({0}))
    with pytest.raises(InputError, match="one per row"):
        segmenter.advance(segmenter.initial(len(ids)), torch.tensor(ids), known=known)


def test_one_token_takes_few_operations():
    segmenter = Segmenter(Terminators({10}))
    state, ids = segmenter.initial(8), torch.full((8, 1), 7)
    with CountOperations() as operations:
        segmenter.advance(state, ids)
    assert operations.count <= 9


@pytest.mark.parametrize("rows", [[[5], [0]], [[5], [6]], [[0]], [[7]]])
def test_a_single_token_tells_whether_any_unit_ends(rows: list[list[int]]) -> None:
    segmenter, ids = Segmenter(Terminators({0}), max_length=3), torch.tensor(rows)
    first, state = segmenter.advance(segmenter.initial(len(ids)), torch.full_like(ids, 5))
    assert first.ends_any is None, "nobody asks for the first"
    units, state = segmenter.advance(state, ids)
    assert units.ends_any is units.completes_any() is bool((ids == 0).any())
    assert state.next_local.tolist() == [[2 * (token != 0)] for (token,) in rows]
    assert state.next_unit.tolist() == [[int(token == 0)] for (token,) in rows]
    assert state.start.tolist() == [[2 * (token == 0)] for (token,) in rows]
    several, _ = segmenter.advance(state, ids.repeat(1, 2))
    assert several.ends_any is None
    assert several.completes_any() is bool(several.closes.any())
