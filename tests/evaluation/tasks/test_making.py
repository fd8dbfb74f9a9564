"""Words that are drawn, haystacks, and how the size of an example is found."""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest

from contentrope.errors import InputError
from contentrope.evaluation.tasks.example import PLACES, Example
from contentrope.evaluation.tasks.fitting import Plan, fitted
from contentrope.evaluation.tasks.haystacks import Prose, noise
from contentrope.evaluation.tasks.words import (
    ADJECTIVES,
    NOUNS,
    compounds,
    identifiers,
    letters,
    numbers,
    phrases,
)


def test_no_word_is_part_of_another() -> None:
    """Else the answer to one question would be found in the answer to another."""
    assert len(set(ADJECTIVES)) == len(ADJECTIVES) > 100
    assert len(set(NOUNS)) == len(NOUNS) > 200
    assert not [(a, b) for a in NOUNS for b in NOUNS if a != b and (b.startswith(a) or b.endswith(a))]


def test_what_is_drawn_is_distinct_and_the_same_again() -> None:
    for draws in (phrases, compounds, numbers, identifiers, lambda draw: letters(draw, 5)):
        found = list(islice(draws(Random(1)), 300))
        assert len(set(found)) == 300
        assert list(islice(draws(Random(1)), 300)) == found
        assert list(islice(draws(Random(2)), 300)) != found
    assert all(len(number) == 5 for number in islice(numbers(Random(0), digits=5), 100))


def test_words_come_to_an_end_and_not_for_ever() -> None:
    with pytest.raises(InputError, match="not more than 26 different words"):
        list(letters(Random(0), 1))


SIZES = {
    "even": lambda pieces: 7 + 3 * pieces,
    "rounded": lambda pieces: 7 + pieces + pieces // 3,
    "bent": lambda pieces: 7 + int(pieces**1.3),
    "steps": lambda pieces: 7 + 50 * (pieces // 40),
}


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("length", [10, 57, 1000, 5003, 130_000])
def test_as_many_pieces_as_fit_are_found_by_few_guesses(kind: str, length: int) -> None:
    size, guesses = SIZES[kind], 0

    def build(pieces: int) -> Example:
        nonlocal guesses
        guesses += 1
        return Example("x" * pieces, "", (), 0)

    found = len(fitted("t", Plan(build, least=1), length, lambda example: size(len(example.prompt))).prompt)
    assert size(found) <= length < size(found + 1) or size(found) == length
    assert guesses < (12 if kind in ("even", "rounded") else 40)


def test_a_plan_may_have_an_end() -> None:
    plan = Plan(lambda pieces: Example("x" * pieces, "", (), 0), least=2, most=9)
    assert len(fitted("t", plan, 100, lambda example: len(example.prompt)).prompt) == 9
    with pytest.raises(InputError, match="length 1 is too short for task t"):
        fitted("t", plan, 1, lambda example: len(example.prompt))


def test_noise_has_needles_on_lines_of_their_own() -> None:
    told = noise(10, [(0, "first"), (20, "middle"), (PLACES - 1, "last"), (PLACES - 1, "after")]).split("\n")
    assert [place for place, line in enumerate(told) if line in ("first", "middle", "last", "after")] == [0, 6, 12, 13]
    assert len(told) == 14


def test_prose_begins_again_where_it_ends() -> None:
    prose = Prose("One two.\n\nThree four five.")
    parts = {prose.part(Random(seed), 9, []) for seed in range(9)}
    assert parts == {
        "One two.\n\nThree four five.\n\nOne two.\n\nThree four",
        "Three four five.\n\nOne two.\n\nThree four five.\n\nOne",
    }


def test_needles_at_the_ends_are_parted_from_the_prose() -> None:
    prose = Prose("One two. Three four")
    assert prose.part(Random(0), 4, [(39, "a."), (0, "b."), (39, "c."), (0, "d.")]) == "b. d. One two. Three four a. c."


def test_titles_end_no_sentence() -> None:
    assert (
        Prose("Then Mr. Grey and Mrs. Grey came home.").part(Random(0), 8, [(14, "X.")]).startswith("X. Then Mr. Grey")
    )
