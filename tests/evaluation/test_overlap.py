"""Exact match and F1 against a slow definition, and what must hold for all texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contentrope.errors import InputError
from contentrope.evaluation.overlap import normalised, overlap

WORDS = st.lists(st.sampled_from(["sea", "Sea", "the", "a", "an", "ship", "1066", "of", "x-y", "..."]), max_size=6)
TEXTS = st.one_of(WORDS.map(" ".join), st.text(max_size=12))
REFERENCES = st.lists(TEXTS, min_size=1, max_size=4)


def f1_by_hand(said: list[str], reference: list[str]) -> float:
    """Precision and recall, by crossing out."""
    if not said or not reference:
        return float(said == reference)
    left, common = list(reference), 0
    for word in said:
        if word in left:
            left.remove(word)
            common += 1
    precision, recall = common / len(said), common / len(reference)
    return 2 * precision * recall / (precision + recall) if common else 0.0


@given(TEXTS, REFERENCES)
def test_the_best_of_all_references_counts(answer: str, references: list[str]) -> None:
    found = overlap(answer, references)
    words = [normalised(text) for text in references]
    assert found.exact == float(normalised(answer) in words)
    assert found.f1 == pytest.approx(max(f1_by_hand(normalised(answer), each) for each in words))
    assert 0.0 <= found.exact <= found.f1 <= 1.0
    assert found == overlap(answer, references[::-1])
    more = overlap(answer, [*references, answer])
    assert more == (1.0, 1.0)


@given(TEXTS, TEXTS)
def test_neither_case_nor_articles_nor_signs_nor_spaces_count(answer: str, reference: str) -> None:
    dressed = f"  The {reference},\tan. "
    assert overlap(answer, [reference]) == overlap(answer, [dressed])
    assert overlap(answer, [reference]).f1 == pytest.approx(overlap(reference, [answer]).f1)


@pytest.mark.parametrize(
    ("answer", "reference", "exact", "f1"),
    [
        ("May 18, 2018", "may 18 2018", 1.0, 1.0),
        ("in May 2018", "May 18, 2018", 0.0, 2 / 3),
        ("theatre", "atre", 0.0, 0.0),
        ("two two", "two", 0.0, 2 / 3),
        ("the", "an", 1.0, 1.0),
        ("", "sea", 0.0, 0.0),
    ],
)
def test_examples(answer: str, reference: str, exact: float, f1: float) -> None:
    assert overlap(answer, [reference]) == (exact, pytest.approx(f1))


@pytest.mark.parametrize("references", [[], "one text"])
def test_no_references_are_refused(references: object) -> None:
    with pytest.raises(InputError, match="one or more answers"):
        overlap("sea", references)  # type: ignore[arg-type]
