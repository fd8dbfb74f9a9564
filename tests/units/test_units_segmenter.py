"""Segmentation against a loop over tokens, streaming against batch, and no look-ahead."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contentrope.errors import InputError
from contentrope.units import Boundaries, FixedLength, Segmenter, Terminators, TextRule, segment
from tests.units.segmentations import (
    TENSORS,
    VOCABULARY,
    CountOperations,
    as_rows,
    cases,
    every_rule,
    quick,
    same_state,
    same_units,
    segment_by_loop,
)


@quick
@given(cases(), st.sets(st.integers(0, 11), max_size=6))
def test_equals_the_loop(case, terminators):
    units = segment(case.ids, Terminators(terminators), max_length=case.max_length, reader=case.reader, **case.masks)
    assert as_rows(units) == segment_by_loop(case, terminators)
    assert units.padded == (case.valid is not None)
    assert units.has_memory == (case.memory is not None or bool(case.reader))


@settings(max_examples=40, deadline=None)
@given(cases(), st.lists(st.integers(0, 24), max_size=6))
def test_any_chunking_equals_the_batch(case, cuts):
    seq = case.ids.shape[1]
    edges = sorted({0, seq, *(cut for cut in cuts if cut < seq)})
    for rule in every_rule(case):
        segmenter = Segmenter(rule, max_length=case.max_length, reader=case.reader)
        whole, after_whole = segmenter.advance(segmenter.initial(len(case.ids)), case.ids, **case.masks)
        state, chunks = segmenter.initial(len(case.ids)), []
        for begin, end in itertools.pairwise(edges):
            units, state = segmenter.advance(state, case.ids[:, begin:end], **case.columns(begin, end))
            assert units.offset == begin
            chunks.append(units)
        for name in TENSORS:
            parts = [getattr(units, name) for units in chunks] or [getattr(whole, name)]
            assert torch.equal(torch.cat(parts, 1), getattr(whole, name)), (rule, name)
        if seq:
            same_state(state, after_whole)


@settings(max_examples=25, deadline=None)
@given(cases(least=1))
def test_one_token_at_a_time_equals_every_prefix(case):
    for rule in every_rule(case):
        segmenter = Segmenter(rule, max_length=case.max_length, reader=case.reader)
        initial = segmenter.initial(len(case.ids))
        state, columns = initial, []
        for t in range(case.ids.shape[1]):
            units, state = segmenter.advance(state, case.ids[:, t : t + 1], **case.columns(t, t + 1))
            columns.append(units)
            prefix, after = segmenter.advance(initial, case.ids[:, : t + 1], **case.columns(0, t + 1))
            same_state(state, after)
            for name in TENSORS:
                assert torch.equal(torch.cat([getattr(c, name) for c in columns], 1), getattr(prefix, name))


def changes_the_past(rule, ids, other, t):
    """Whether replacing the tokens after t changes anything at or before t."""
    edited = torch.cat([ids[:, : t + 1], other[:, t + 1 :]], 1)
    before, after = (
        segment(ids, rule, max_length=5, reader={9}),
        segment(edited, rule, max_length=5, reader={9}),
    )
    return any(not torch.equal(getattr(before, name)[:, : t + 1], getattr(after, name)[:, : t + 1]) for name in TENSORS)


class EndsBeforeACapital:
    """Breaks the contract on purpose: looks at the next token."""

    def initial(self, batch_size, device):
        return torch.zeros(batch_size, 0, dtype=torch.int64, device=device)

    def scan(self, ids, valid, state):
        capital_next = torch.zeros_like(valid)
        capital_next[:, :-1] = ids[:, 1:] == VOCABULARY.index("B")
        return capital_next & valid, state


@quick
@given(cases(least=2), st.data())
def test_no_rule_looks_ahead(case, data):
    t = data.draw(st.integers(0, case.ids.shape[1] - 2))
    other = torch.randint(0, len(VOCABULARY), case.ids.shape, generator=case.generator)
    for rule in every_rule(case):
        assert not changes_the_past(rule, case.ids, other, t), rule


def test_the_look_ahead_check_catches_a_rule_that_looks_ahead():
    ids, other = torch.tensor([[0, 3, 1, 0]]), torch.tensor([[0, 3, 0, 0]])
    assert changes_the_past(EndsBeforeACapital(), ids, other, 1)


def test_a_reordered_state_goes_on_as_its_row():
    ids = torch.tensor([[1, 0, 1, 1], [1, 1, 1, 9], [0, 2, 1, 1]])
    index = torch.tensor([2, 0, 0])
    for rule in (Terminators({0}), FixedLength(3), Boundaries(ids == 1), TextRule("line", VOCABULARY)):
        segmenter = Segmenter(rule, max_length=3, reader={9})
        _, state = segmenter.advance(segmenter.initial(3), ids[:, :3])
        units, after = segmenter.advance(state, ids[:, 3:])
        chosen, after_chosen = segmenter.advance(state.reorder(index), ids[index, 3:])
        assert all(torch.equal(getattr(units, name)[index], getattr(chosen, name)) for name in TENSORS)
        same_state(after.reorder(index), after_chosen)


def test_given_ends_replace_the_rule():
    segmenter = Segmenter(Terminators({0}), max_length=3)
    ends = torch.tensor([[False, False, True, False]])
    units, state = segmenter.advance(segmenter.initial(1), torch.tensor([[0, 0, 1, 1]]), ends=ends)
    assert units.closes.tolist() == ends.tolist()
    units, _ = segmenter.advance(state, torch.tensor([[1]]), ends=torch.tensor([[True]]))
    assert (units.unit.item(), units.local.item(), units.closes.item()) == (1, 1, True)


def test_marks_last_into_later_chunks_that_give_none():
    segmenter = Segmenter(Terminators({0}))
    _, state = segmenter.advance(segmenter.initial(1), torch.tensor([[1]]), memory=torch.tensor([[True]]))
    units, state = segmenter.advance(state, torch.tensor([[1, 0, 1]]))
    assert units.memory.tolist() == [[True, True, False]]
    assert units.has_memory
    assert not segmenter.advance(state, torch.tensor([[1]]))[0].memory.any()


def test_a_marker_inside_a_unit_marks_only_the_next():
    units = segment(torch.tensor([[1, 9, 0, 1, 0]]), Terminators({0}), reader={9})
    assert units.memory.tolist() == [[True, True, True, False, False]]


@pytest.mark.parametrize("shape", [(2, 0), (0, 3), (0, 0)])
def test_nothing_to_segment(shape):
    ids = torch.zeros(shape, dtype=torch.int64)
    empty_mask = torch.ones(shape, dtype=torch.bool)
    for rule in (Terminators({0}), FixedLength(2), TextRule("sentence", VOCABULARY), Boundaries(empty_mask)):
        units = segment(ids, rule, valid=empty_mask, memory=empty_mask)
        assert units.unit.shape == units.completed.shape == units.lengths().shape == shape


def test_a_padded_row_has_no_units():
    ids = torch.zeros(2, 4, dtype=torch.int64)
    valid = torch.tensor([[False] * 4, [True] * 4])
    units = segment(ids, Terminators({0}), valid=valid, max_length=2)
    assert units.count.tolist() == [0, 4]
    assert as_rows(units)[0] == [(0, 0, t, False, False, False) for t in range(4)]


def test_narrow_ids_are_fine():
    ids = torch.tensor([[1, 0, 1]], dtype=torch.int32)
    for rule in (Terminators({0}), Terminators(range(0, 20, 2)), TextRule("line", ["\n", "a"])):
        assert segment(ids, rule).closes.tolist() == [[False, True, False]]


@pytest.mark.parametrize("rule", [Terminators({0}), Terminators(range(6)), FixedLength(3), TextRule("line", "a\nb")])
def test_compiles_without_a_break(rule):
    torch._dynamo.reset()
    ids = torch.randint(0, 3, (2, 9), generator=torch.Generator().manual_seed(0))
    valid = ids < 2

    def run(ids, valid):
        segmenter = Segmenter(rule, max_length=4)
        units, state = segmenter.advance(segmenter.initial(2), ids)
        return segment(ids, rule, valid=valid, reader={1}), units, segmenter.advance(state, ids[:, :1])[0]

    for compiled, plain in zip(
        torch.compile(run, fullgraph=True, backend="eager")(ids, valid), run(ids, valid), strict=True
    ):
        same_units(compiled, plain)


IDS = torch.zeros(2, 3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: segment(IDS[0], Terminators({0})), r"ids has shape \(3,\): pass \(batch, seq\)"),
        (lambda: segment(IDS.float(), Terminators({0})), r"ids has dtype torch.float32"),
        (lambda: segment(IDS.to(torch.uint8), Terminators({0})), r"ids has dtype torch.uint8"),
        (lambda: segment(IDS, {0}), r"rule is \{0\}: .*Terminators\(\{\.\.\.\}\)"),
        (lambda: segment(IDS, Terminators({0}), max_length=0), "max_length must be a positive integer, got 0"),
        (lambda: segment(IDS, Terminators({0}), valid=IDS), r"valid has dtype torch.int64: pass a bool mask"),
        (lambda: segment(IDS, Terminators({0}), memory=IDS[:1] == 0), r"memory has shape \(1, 3\)"),
        (lambda: segment(IDS, Terminators({0}), memory=IDS == 0, reader={5}), r"reader=\(5,\) both mark"),
        (lambda: segment(IDS, Boundaries(IDS[:, :2] == 0)), r"ends have shape \(2, 2\), ids \(2, 3\)"),
        (lambda: Boundaries(IDS), r"ends is torch.int64 of shape \(2, 3\)"),
        (lambda: Boundaries(IDS == 0).initial(3, "cpu"), r"ends have shape \(2, 3\), the batch 3 rows"),
        (lambda: Terminators({-1}), r"terminators contains -1"),
        (lambda: Terminators({2**31}), r"terminators contains 2147483648"),
        (lambda: Terminators(["a"]), r"terminators contains 'a'"),
        (lambda: Terminators([True]), r"terminators contains True"),
        (lambda: Terminators("\n"), r"terminators is '\\n': pass a set of token ids"),
        (lambda: Terminators(3), r"terminators is 3"),
        (lambda: FixedLength(0), r"n must be a positive integer, got 0"),
        (lambda: Segmenter(Terminators({0}), reader={-2}), r"reader contains -2"),
    ],
)
def test_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_a_stream_past_its_boundaries_is_refused():
    segmenter = Segmenter(Boundaries(IDS == 0))
    _, state = segmenter.advance(segmenter.initial(2), IDS[:, :2])
    with pytest.raises(InputError, match=r"ends have shape \(2, 3\), ids reach 4 columns"):
        segmenter.advance(state, IDS[:, :2])


def test_a_state_of_other_rows_is_refused():
    segmenter = Segmenter(Terminators({0}))
    with pytest.raises(InputError, match=r"ids have 2 rows, the state 1"):
        segmenter.advance(segmenter.initial(1), IDS)
    with pytest.raises(InputError, match=r"ends has shape \(2, 2\)"):
        segmenter.advance(segmenter.initial(2), IDS, ends=IDS[:, :2] == 0)


@pytest.mark.parametrize("chunk", [3, 1])
def test_an_end_that_the_caller_gives_at_padding_ends_nothing(chunk):
    segmenter, ids = Segmenter(Terminators({0})), torch.ones(1, 3, dtype=torch.int64)
    valid, ends = torch.tensor([[True, False, True]]), torch.tensor([[False, True, False]])
    state, found = segmenter.initial(1), []
    for span in (slice(t, t + chunk) for t in range(0, 3, chunk)):
        units, state = segmenter.advance(state, ids[:, span], valid=valid[:, span], ends=ends[:, span])
        found += [units.unit[0].tolist(), units.closes[0].tolist(), units.local[0].tolist()]
    assert not any(itertools.chain(*found[1::3]))
    assert not any(itertools.chain(*found[0::3]))
    assert list(itertools.chain(*found[2::3])) == [0, 0, 1]


def test_a_text_without_padding_takes_few_operations():
    segmenter, ids = Segmenter(Terminators({10})), torch.full((2, 30), 7)
    counts = []
    for valid in (None, torch.ones_like(ids, dtype=torch.bool)):
        with CountOperations() as operations:
            segmenter.advance(segmenter.initial(2), ids, valid=valid)
        counts.append(operations.count)
    assert counts[0] <= 36
    assert counts[0] < counts[1], "what padding needs is left out"
