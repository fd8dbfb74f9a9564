"""Memory units see only themselves, so what they hold depends on nothing else and their order means nothing.

Each promise stands beside the same text without the mark, where it does not hold. A text is a list of units, read in
float64 by a model of three layers: above the first one, states of unmarked units depend on the units before them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import contentrope as cr
from tests.support import TERMINATOR, VOCABULARY, WINDOWED, lively_model

TOLERANCE = 1e-12
"""Of logits of about 4. Rounding grows with the weights: tests/fuzz measures by how much."""
MOVED = 1e-3
MARKER = VOCABULARY - 1

Unit = list[int]

some_unit = st.lists(st.integers(1, MARKER - 1), min_size=1, max_size=5).map(lambda unit: [*unit, TERMINATOR])
memories = st.lists(some_unit, min_size=2, max_size=5)
# A question that is not finished: its last token is where a reader would answer.
questions = st.lists(st.integers(1, MARKER - 1), min_size=1, max_size=5).map(lambda unit: [MARKER, *unit])

MODELS: dict[str, dict[str, Any]] = {
    "content": {"scheme": "content"},
    "local": {"scheme": "local"},
    "reference": {"scheme": "content", "backend": "reference"},
    "competition": {"scheme": "content", "options": {"competition": 1.0}},
    "sharpness": {"scheme": "content", "options": {"competition": 1.0, "sharpness": 0.5}},
    "window": {"scheme": WINDOWED},
    "grouped queries": {"scheme": "content", "kv_heads": 1, "rotary": cr.RotaryConfig(pairs="interleaved")},
}
any_model = pytest.mark.parametrize("made_with", MODELS.values(), ids=MODELS)


class Held(NamedTuple):
    """What a cache holds of one unit: (layers, kv_heads, tokens, head_dim) each."""

    keys: Tensor
    values: Tensor


def read(model: cr.Transformer, units: list[Unit], marked: int, chunk: int = 100) -> tuple[Tensor, list[Held]]:
    """Logits by column, and what the cache holds of each unit; the first ``marked`` units are memory."""
    ids = torch.tensor([[token for unit in units for token in unit]])
    mask = torch.tensor([[number < marked for number, unit in enumerate(units) for _ in unit]])
    cache = model.new_cache(1)
    spans = zip(ids.split(chunk, dim=1), mask.split(chunk, dim=1), strict=True)
    logits = torch.cat([model(part, memory=marks, cache=cache) for part, marks in spans], dim=1)
    keys, values = (torch.stack(parts)[:, 0, :, : cache.length] for parts in (cache.keys, cache.values))
    by_unit = cache.fact("unit")[0]
    numbers = range(int(by_unit.max()) + 1)
    return logits[0], [Held(keys[:, :, by_unit == n], values[:, :, by_unit == n]) for n in numbers]


def gap(a: Held, b: Held) -> float:
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))


def question_logits(model: cr.Transformer, memory: list[Unit], question: Unit, *, marked: bool) -> Tensor:
    logits, _ = read(model, [*memory, question], len(memory) if marked else 0)
    return logits[-len(question) :]


# --- Order ---


@any_model
@settings(max_examples=15)
@given(memories, questions, st.data())
def test_readers_do_not_see_the_order_of_memory_units(
    made_with: dict[str, Any], memory: list[Unit], question: Unit, data: st.DataObject
) -> None:
    model = lively_model(**made_with)
    shuffled = data.draw(st.permutations(memory))
    expected = question_logits(model, memory, question, marked=True)
    found = question_logits(model, shuffled, question, marked=True)
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


@any_model
@settings(max_examples=15)
@given(memories, questions, st.data())
def test_readers_see_the_order_of_unmarked_units(
    made_with: dict[str, Any], memory: list[Unit], question: Unit, data: st.DataObject
) -> None:
    model = lively_model(**made_with)
    shuffled = data.draw(st.permutations(memory))
    assume(shuffled != memory)
    expected = question_logits(model, memory, question, marked=False)
    found = question_logits(model, shuffled, question, marked=False)
    assert float((found - expected).abs().max()) > MOVED


@given(memories, questions, some_unit, st.data())
def test_readers_that_completed_their_unit_do_not_see_the_order_either(
    memory: list[Unit], question: Unit, answer: Unit, data: st.DataObject
) -> None:
    """Readers after readers: the first one closes its unit, and its keys are read at its address."""
    model = lively_model("content")
    shuffled = data.draw(st.permutations(memory))
    readers = [[*question, TERMINATOR], answer]
    (expected, held), (found, held_after) = (read(model, [*m, *readers], len(m)) for m in (memory, shuffled))
    count = sum(len(unit) for unit in readers)
    torch.testing.assert_close(found[-count:], expected[-count:], rtol=0, atol=TOLERANCE)
    assert all(gap(a, b) <= TOLERANCE for a, b in zip(held[-2:], held_after[-2:], strict=True))


@given(memories, questions)
def test_readers_do_read_memory_units(memory: list[Unit], question: Unit) -> None:
    """Their order means nothing, their content does."""
    model = lively_model("content")
    expected = question_logits(model, memory, question, marked=True)
    changed = [[token % (MARKER - 1) + 1 for token in memory[0][:-1]] + [TERMINATOR], *memory[1:]]
    found = question_logits(model, changed, question, marked=True)
    assert float((found - expected).abs().max()) > MOVED


# --- Insertion and deletion ---


@st.composite
def edits(draw: st.DrawFn) -> tuple[list[Unit], list[Unit], list[tuple[int, int]]]:
    """Memory units before and after one was inserted or deleted, and the numbers of those that are in both."""
    memory = draw(memories)
    place = draw(st.integers(0, len(memory) - 1))
    if draw(st.booleans()):
        longer = [*memory[:place], draw(some_unit), *memory[place:]]
        return memory, longer, [(n, n if n < place else n + 1) for n in range(len(memory))]
    shorter = [*memory[:place], *memory[place + 1 :]]
    return memory, shorter, [(n, n if n < place else n - 1) for n in range(len(memory)) if n != place]


@any_model
@pytest.mark.parametrize("chunk", [100, 1], ids=["whole", "single"])
@settings(max_examples=15)
@given(edits(), questions)
def test_other_memory_units_keep_their_keys_and_values(
    made_with: dict[str, Any], chunk: int, edit: tuple[list[Unit], list[Unit], list[tuple[int, int]]], question: Unit
) -> None:
    before, after, same = edit
    model = lively_model(**made_with)
    _, held_before = read(model, [*before, question], len(before), chunk)
    _, held_after = read(model, [*after, question], len(after), chunk)
    assert all(gap(held_before[a], held_after[b]) <= TOLERANCE for a, b in same)


@any_model
@settings(max_examples=15)
@given(memories, some_unit)
def test_unmarked_units_do_not_keep_their_keys_and_values(
    made_with: dict[str, Any], memory: list[Unit], inserted: Unit
) -> None:
    model = lively_model(**made_with)
    _, held_before = read(model, memory, 0)
    _, held_after = read(model, [inserted, *memory], 0)
    gaps = [gap(a, b) for a, b in zip(held_before, held_after[1:], strict=True)]
    assert min(gaps) > MOVED


@any_model
@settings(max_examples=15)
@given(memories, questions)
def test_a_memory_unit_is_the_same_alone(made_with: dict[str, Any], memory: list[Unit], question: Unit) -> None:
    """So it can be read once and used in any context. A question follows, as a window lets nobody leave before."""
    model = lively_model(**made_with)
    _, together = read(model, [*memory, question], len(memory))
    alone = [read(model, [unit, question], 1)[1][0] for unit in memory]
    assert all(gap(a, b) <= TOLERANCE for a, b in zip(together[:-1], alone, strict=True))


# --- The mark ---


@given(memories, questions, st.sampled_from([1, 3, 100]))
def test_mask_and_marker_agree(memory: list[Unit], question: Unit, chunk: int) -> None:
    by_mask, by_marker = lively_model("content"), lively_model("content", reader=(MARKER,))
    expected, _ = read(by_mask, [*memory, question], len(memory), chunk)
    ids = torch.tensor([[token for unit in [*memory, question] for token in unit]])
    cache = by_marker.new_cache(1)
    found = torch.cat([by_marker(part, cache=cache) for part in ids.split(chunk, dim=1)], dim=1)
    torch.testing.assert_close(found[0], expected, rtol=0, atol=TOLERANCE)
    with torch.no_grad():
        torch.testing.assert_close(by_marker(ids)[0], expected, rtol=0, atol=TOLERANCE)
    assert cache.fact("memory")[0].tolist() == [1] * sum(map(len, memory)) + [0] * len(question)


@given(memories, some_unit, questions)
def test_a_marker_inside_a_unit_marks_the_next(memory: list[Unit], divided: Unit, question: Unit) -> None:
    """The mark is known from a unit's first token on: a marker that comes later comes too late."""
    divided = [*divided[:-1], MARKER, TERMINATOR]
    by_mask, by_marker = lively_model("content"), lively_model("content", reader=(MARKER,))
    units = [*memory, divided, question[1:]]
    expected, _ = read(by_mask, units, len(memory) + 1)
    with torch.no_grad():
        found = by_marker(torch.tensor([[token for unit in units for token in unit]]))
    torch.testing.assert_close(found[0], expected, rtol=0, atol=TOLERANCE)


@any_model
@settings(max_examples=15)
@given(memories, questions, st.data())
def test_the_mark_does_not_depend_on_being_last(
    made_with: dict[str, Any], memory: list[Unit], question: Unit, data: st.DataObject
) -> None:
    """Cut the text anywhere in its memory: the last unit, open or just completed, is as blind as it was inside."""
    model = lively_model(**made_with)
    whole, _ = read(model, [*memory, question], len(memory))
    last = data.draw(st.integers(0, len(memory) - 1))
    kept = data.draw(st.integers(1, len(memory[last])))
    cut = [*memory[:last], memory[last][:kept]]
    found, _ = read(model, cut, len(cut))
    torch.testing.assert_close(found, whole[: len(found)], rtol=0, atol=TOLERANCE)
    alone, _ = read(model, [cut[-1]], 1)
    torch.testing.assert_close(found[-kept:], alone, rtol=0, atol=TOLERANCE)


@given(memories)
def test_an_unmarked_last_unit_does_see_the_others(memory: list[Unit]) -> None:
    model = lively_model("content")
    found, _ = read(model, memory, len(memory) - 1)
    alone, _ = read(model, memory[-1:], 0)
    assert float((found[-len(alone) :] - alone).abs().max()) > MOVED


@given(memories, questions, st.data())
def test_rows_of_a_batch_keep_to_themselves(memory: list[Unit], question: Unit, data: st.DataObject) -> None:
    """Two orders of the same memory as two left-padded rows of one batch, boundaries out of step."""
    model = lively_model("content")
    rows = [[*memory, question], [*data.draw(st.permutations(memory))[1:], question]]
    flat = [[token for unit in row for token in unit] for row in rows]
    width = max(map(len, flat))
    ids = torch.tensor([[1] * (width - len(row)) + row for row in flat])
    valid = torch.tensor([[column >= width - len(row) for column in range(width)] for row in flat])
    memory_mask = (torch.arange(width) < width - len(question)).expand(2, -1)
    with torch.no_grad():
        found = model(ids, valid=valid, memory=memory_mask)
    for row, logits in zip(rows, found, strict=True):
        expected = question_logits(model, row[:-1], question, marked=True)
        torch.testing.assert_close(logits[-len(question) :], expected, rtol=0, atol=TOLERANCE)
