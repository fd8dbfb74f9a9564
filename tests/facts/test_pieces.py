"""Rows assembled from pieces, against the same by joining strings."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from contentrope.facts.pieces import PieceTable

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
    found = table.assemble(pieces, marks, width)
    for row, (written, flags) in enumerate(zip(texts, marks.tolist(), strict=True)):
        whole = "".join(written)
        assert int(found.lengths[row]) == len(whole)
        assert found.ids[row].tolist() == [ord(character) for character in whole] + [0] * (width - len(whole))
        marked = [flag for text, flag in zip(written, flags, strict=True) for _ in text]
        assert found.marked[row].tolist() == marked + [False] * (width - len(whole))
