"""The unit table: derived values, and what a hand-made one is refused for."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contentrope.errors import InputError
from contentrope.units import Segmenter, Terminators, Units, segment

UNIT = [[0, 0, 1, 1, 2]]
LOCAL = [[0, 1, 0, 1, 0]]
CLOSES = [[0, 1, 0, 1, 0]]


def hand_made(unit=UNIT, local=LOCAL, closes=CLOSES, valid=None, memory=None):
    masks = [None if m is None else torch.tensor(m).bool() for m in (closes, valid, memory)]
    return Units.of(torch.tensor(unit), torch.tensor(local), *masks)


def test_hand_made_table():
    units = hand_made(memory=[[1, 1, 0, 0, 1]])
    assert units.start.tolist() == [[0, 0, 2, 2, 4]]
    assert units.completed.tolist() == [[True, True, True, True, False]]
    assert units.count.tolist() == [2]
    assert units.lengths().tolist() == [[2, 2, 1, 0, 0]]
    assert (units.batch_size, units.seq_length, units.offset) == (1, 5, 0)
    assert units.has_memory
    assert not units.padded
    assert units.unit.dtype == units.local.dtype == units.start.dtype == torch.int64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unit": [[0, 0, 1, 0, 2]]}, r"unit\[0, 3\] is 0: .*never go down"),
        ({"unit": [[-1, 0, 1, 1, 2]]}, r"unit\[0, 0\] is -1"),
        ({"unit": [[1, 1, 2, 2, 3]]}, r"unit\[0, 0\] is 1: .*number of True in closes"),
        ({"unit": [[0, 0, 1, 1, 3]]}, r"unit\[0, 4\] is 3"),
        ({"closes": [[0, 1, 1, 0, 0]]}, r"unit\[0, 3\] is 1"),
        ({"local": [[1, 2, 0, 1, 0]]}, r"local\[0, 0\] is 1: local must restart at 0"),
        ({"local": [[0, 1, 0, 2, 0]]}, r"local\[0, 3\] is 2"),
        ({"memory": [[1, 1, 1, 0, 0]]}, r"memory\[0, 3\] is False: all tokens of a unit"),
        ({"valid": [[1, 1, 1, 0, 1]]}, r"closes\[0, 3\] is True: padding ends no unit"),
        (
            {"valid": [[1, 0, 1, 1, 1]], "closes": [[1, 0, 0, 1, 0]]},
            r"local\[0, 1\] is 1: padding has local 0",
        ),
        ({"valid": [[1, 1, 1, 1, 0]], "memory": [[1, 1, 0, 0, 1]]}, r"memory\[0, 4\] is True: padding"),
        ({"valid": [[1, 1, 1, 1]]}, r"valid has shape \(1, 4\), the tokens \(1, 5\)"),
        ({"local": [[0, 1]]}, r"local has shape \(1, 2\): pass the shape of unit, \(1, 5\)"),
        ({"unit": [0, 0, 1, 1, 2]}, r"unit has shape \(5,\): pass \(batch, seq\)"),
        ({"local": [[0.0, 1.0, 0.0, 1.0, 0.0]]}, r"local has dtype torch.float32"),
    ],
)
def test_refused(change, message):
    with pytest.raises(InputError, match=message):
        hand_made(**change)


def test_refusal_names_the_row():
    with pytest.raises(InputError, match=r"unit\[1, 1\] is 5"):
        hand_made(unit=[[0, 0], [0, 5]], local=[[0, 1], [0, 1]], closes=[[0, 0], [0, 0]])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_segmentation_passes_its_own_check(data):
    batch, seq = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 15))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    ids = torch.randint(0, 4, (batch, seq), generator=generator)
    valid, memory = torch.randint(0, 2, (2, batch, seq), generator=generator).bool()
    units = segment(ids, Terminators({0}), max_length=data.draw(st.integers(1, 4)), valid=valid, memory=memory)
    rebuilt = Units.of(units.unit, units.local, units.closes, units.valid, units.memory)
    assert torch.equal(rebuilt.start, units.start)
    for row in range(batch):
        for t in range(seq):
            later_end = any(units.closes[row, s] and units.unit[row, s] == units.unit[row, t] for s in range(seq))
            assert units.completed[row, t] == (bool(valid[row, t]) and later_end)
        lengths = [int((units.unit[row][valid[row]] == u).sum()) for u in range(seq)]
        assert units.lengths()[row].tolist() == lengths


def test_a_chunk_of_a_stream_counts_from_its_own_first_unit():
    segmenter = Segmenter(Terminators({0}))
    _, state = segmenter.advance(segmenter.initial(1), torch.tensor([[1, 0, 1, 1]]))
    units, _ = segmenter.advance(state, torch.tensor([[1, 0, 1]]))
    assert units.completed.tolist() == [[True, True, False]]
    assert units.lengths().tolist() == [[4, 1, 0]]  # the open unit's earlier tokens count
    assert units.offset == 4


def test_to_keeps_everything():
    units = segment(torch.tensor([[1, 0, 1]]), Terminators({0}), reader={1})
    moved = units.to("meta")
    assert moved.unit.device.type == moved.memory.device.type == "meta"
    assert moved.has_memory
