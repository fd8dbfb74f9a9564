"""Segmentation against a loop over tokens, streaming against batch, and no look-ahead."""

import itertools
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from contentrope.errors import InputError
from contentrope.units import Boundaries, FixedLength, Segmenter, Terminators, TextRule, segment

TENSORS = ("unit", "local", "start", "closes", "valid", "memory")
STATE_TENSORS = ("rule", "next_unit", "next_local", "start", "memory", "reader_seen")
VOCABULARY = ["a", "B", "Mr", ". ", "?", "\n", "\n\n", "x.\n", " |", "|", "3", "end."]
quick = settings(max_examples=60, deadline=None)


@dataclass
class Case:
    ids: torch.Tensor
    max_length: int
    valid: torch.Tensor | None
    memory: torch.Tensor | None
    reader: tuple[int, ...]
    generator: torch.Generator

    @property
    def masks(self):
        return {"valid": self.valid, "memory": self.memory}

    def columns(self, begin, end):
        return {name: None if mask is None else mask[:, begin:end] for name, mask in self.masks.items()}


@st.composite
def cases(draw, least=0):
    shape = (draw(st.integers(1, 3)), draw(st.integers(least, 24)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def mask(density):
        return torch.rand(shape, generator=generator) < density

    marking = draw(st.sampled_from(["none", "memory", "reader"]))
    return Case(
        ids=torch.randint(0, len(VOCABULARY), shape, generator=generator),
        max_length=draw(st.integers(1, 7)),
        valid=mask(draw(st.sampled_from([0.0, 0.5, 0.9]))) if draw(st.booleans()) else None,
        memory=mask(0.5) if marking == "memory" else None,
        reader=(8, 9) if marking == "reader" else (),
        generator=generator,
    )


def every_rule(case):
    text = {"record": {"marker": ".\nB"}, "document": {"marker": "||"}}
    return [
        Terminators({0, 5}),
        Terminators({0, 1, 2, 3, 5}),
        Terminators(()),
        FixedLength(3),
        Boundaries(torch.rand(case.ids.shape, generator=case.generator) < 0.3),
        *(
            TextRule(kind, VOCABULARY, **text.get(kind, {}))
            for kind in ("line", "sentence", "paragraph", "record", "document")
        ),
    ]


def segment_by_loop(case, terminators):
    """Token by token, as the definition reads."""
    rows = []
    for row, ids in enumerate(case.ids.tolist()):
        unit, length, first, mark, marker_seen, columns = 0, 0, 0, False, False, []
        for t, token in enumerate(ids):
            if case.valid is not None and not case.valid[row, t]:
                columns.append((unit, 0, t, False, False, False))
                continue
            marker_seen = marker_seen or token in case.reader
            if length == 0:
                first = t
                marked_by_mask = case.memory is not None and bool(case.memory[row, t])
                mark = not marker_seen if case.reader else marked_by_mask
            closes = token in terminators or length == case.max_length - 1
            columns.append((unit, length, first, closes, True, mark))
            unit, length = (unit + 1, 0) if closes else (unit, length + 1)
        rows.append(columns)
    return rows


def as_rows(units):
    tables = [getattr(units, name).tolist() for name in TENSORS]
    return [list(zip(*(table[row] for table in tables), strict=True)) for row in range(units.batch_size)]


def same_units(left, right):
    assert all(torch.equal(getattr(left, name), getattr(right, name)) for name in TENSORS)
    assert (left.has_memory, left.offset) == (right.has_memory, right.offset)


def same_state(left, right):
    assert all(torch.equal(getattr(left, name), getattr(right, name)) for name in STATE_TENSORS)
    assert (left.has_memory, left.columns) == (right.has_memory, right.columns)


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


def test_decoding_a_row_alone_knows_where_its_unit_began():
    segmenter = Segmenter(Terminators({0}), max_length=3)
    _, state = segmenter.advance(segmenter.initial(1), torch.tensor([[1, 0, 1]]))
    found = [state.opened]
    for token in (0, 1, 1, 1, 1):
        _, state = segmenter.advance(state, torch.tensor([[token]]), known=[token])
        found.append(state.opened)
    assert found == [None, 4, 4, 4, 7, 7]  # a text at once is not asked; the longest unit ends at the seventh token


def test_only_terminators_are_known_by_their_id():
    for rule in (FixedLength(2), Boundaries(torch.tensor([[False, True]])), TextRule("line", VOCABULARY)):
        segmenter = Segmenter(rule)
        _, state = segmenter.advance(segmenter.initial(1), torch.tensor([[1]]))
        asked, told = (segmenter.advance(state, torch.tensor([[2]]), known=known)[0] for known in (None, [2]))
        same_units(told, asked)


@pytest.mark.parametrize(("ids", "known"), [([[1, 2]], [1, 2]), ([[1], [2]], [1])], ids=["two tokens", "a row less"])
def test_known_ids_must_be_one_per_row(ids, known):
    segmenter = Segmenter(Terminators({0}))
    with pytest.raises(InputError, match="one per row"):
        segmenter.advance(segmenter.initial(len(ids)), torch.tensor(ids), known=known)


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


class CountOperations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_one_token_takes_few_operations():
    segmenter = Segmenter(Terminators({10}))
    state, ids = segmenter.initial(8), torch.full((8, 1), 7)
    with CountOperations() as operations:
        segmenter.advance(state, ids)
    assert operations.count <= 9


IDS = torch.zeros(2, 3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: segment(IDS[0], Terminators({0})), r"ids has shape \(3,\): pass \(batch, seq\)"),
        (lambda: segment(IDS.float(), Terminators({0})), r"ids has dtype torch.float32"),
        (lambda: segment(IDS.to(torch.uint8), Terminators({0})), r"ids has dtype torch.uint8"),
        (lambda: segment(IDS, {0}), r"rule is \{0\}: .*Terminators\(\{\.\.\.\}\)"),
        (lambda: segment(IDS, Terminators({0}), max_length=0), r"max_length is 0: pass an int of at least 1"),
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
        (lambda: FixedLength(0), r"n is 0"),
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
