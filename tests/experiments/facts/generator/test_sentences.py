"""Ids and back, which of them end a unit or begin the reading, and rows assembled from pieces."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contentrope.errors import InputError
from contentrope.units import Terminators, segment
from experiments.facts.generator.sampler import Sampler
from experiments.facts.generator.sentences import PADDING, FactVocabulary, Layout, PieceTable
from experiments.facts.generator.words import ROLES
from experiments.facts.generator.world import World

VOCABULARY = FactVocabulary()


def test_the_symbols() -> None:
    assert len(VOCABULARY) == len(set(VOCABULARY.symbols)) == 1 + 26 + 1 + 3 + 2 + 30
    assert VOCABULARY.symbols[PADDING] == ""
    assert all(len(VOCABULARY.encode(f"<{role}>")) == 1 for role in ROLES)
    assert all(len(VOCABULARY.encode(role)) == len(role) for role in ROLES)


@given(st.lists(st.sampled_from(VOCABULARY.symbols[1:])))
def test_encoding_is_undone_by_decoding(symbols: list[str]) -> None:
    text = "".join(symbols)
    ids = VOCABULARY.encode(text)
    assert len(ids) == len(symbols)
    assert PADDING not in ids
    assert VOCABULARY.decode(ids) == VOCABULARY.decode(torch.tensor([*ids, PADDING, PADDING])) == text


@pytest.mark.parametrize("text", ["Adam", "<uncle>", "adam\n", "a<b", "é"])
def test_other_characters_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not among the 63 symbols; use lowercase letters"):
        VOCABULARY.encode(text)


def test_other_ids_are_refused() -> None:
    with pytest.raises(InputError, match=r"id 63 lies outside the vocabulary \(ids 0..62\)"):
        VOCABULARY.decode([63])
    with pytest.raises(InputError, match="decode row by row"):
        VOCABULARY.decode(torch.zeros(2, 3, dtype=torch.int64))


@pytest.mark.parametrize(("layout", "ends"), [("end", ";"), ("apart", ";|"), ("bar", "|")])
def test_terminators(layout: Layout, ends: str, small_world: World) -> None:
    assert Sampler(small_world, layout).terminators == tuple(VOCABULARY.encode(ends))


@pytest.mark.parametrize(("layout", "more_units"), [("end", 1), ("apart", 2)])
def test_facts_are_memory_and_the_text_reads_them(
    layout: Layout, more_units: int, small_world: World, generator: torch.Generator
) -> None:
    sampler = Sampler(small_world, layout)
    drawn = sampler.draw(50, generator, condition="mixed", distractors=(0, 5))
    columns = torch.arange(drawn.ids.shape[1])
    valid = columns < drawn.lengths.unsqueeze(1)
    units = segment(drawn.ids, Terminators(set(sampler.terminators)), valid=valid, reader=sampler.reader)
    text_start = drawn.text_start.unsqueeze(1)
    assert torch.equal(units.memory & valid, columns < text_start)
    last = units.unit.gather(1, drawn.lengths.unsqueeze(1) - 1)[:, 0]
    assert torch.equal(last + 1, drawn.facts + more_units)


def test_the_bar_layout_has_units_but_no_reader(small_world: World, generator: torch.Generator) -> None:
    sampler = Sampler(small_world, "bar")
    drawn = sampler.draw(20, generator, condition="same relation", distractors=(0, 5))
    units = segment(drawn.ids, Terminators(set(sampler.terminators)))
    last = units.unit.gather(1, drawn.lengths.unsqueeze(1) - 1)[:, 0]
    assert torch.equal(last, drawn.facts)
    with pytest.raises(InputError, match=r"layout 'bar' has no reader marker.*use 'end' or 'apart'"):
        _ = sampler.reader


def test_an_unknown_layout_is_refused(small_world: World) -> None:
    with pytest.raises(InputError, match="layout must be one of 'end', 'apart', 'bar'; got 'dot'"):
        Sampler(small_world, "dot")  # type: ignore[arg-type]


TEXTS = ["", "a", "be", "cat", "", "letter"]

pieces_and_marks = st.lists(st.tuples(st.integers(0, len(TEXTS)), st.booleans()), min_size=5, max_size=5)


@given(st.lists(pieces_and_marks, min_size=1, max_size=4), st.integers(0, 7))
def test_rows_are_their_pieces_in_order(rows: list[list[tuple[int, bool]]], spare: int) -> None:
    table = PieceTable(lambda text: [ord(character) for character in text])
    assert table.add(TEXTS[:2]) == 1  # 0 is the empty piece
    assert table.add(TEXTS[2:]) == 3
    table.freeze("cpu")
    texts = [[("", *TEXTS)[piece] for piece, _ in row] for row in rows]
    width = max(len("".join(row)) for row in texts) + spare
    pieces, marks = (torch.tensor([[pair[i] for pair in row] for row in rows]) for i in (0, 1))
    ids, lengths, marked = table.assemble(pieces, marks, width)
    for row, (written, flags) in enumerate(zip(texts, marks.tolist(), strict=True)):
        whole = "".join(written)
        assert int(lengths[row]) == len(whole)
        assert ids[row].tolist() == [ord(character) for character in whole] + [0] * (width - len(whole))
        expected = [flag for text, flag in zip(written, flags, strict=True) for _ in text]
        assert marked[row].tolist() == expected + [False] * (width - len(whole))
