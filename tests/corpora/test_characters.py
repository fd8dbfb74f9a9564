"""A character vocabulary is a bijection between its symbols and 0..n-1."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contentrope.corpora import CharVocabulary
from contentrope.errors import InputError


@given(st.text(min_size=1))
def test_encoding_is_undone_by_decoding(text: str) -> None:
    vocabulary = CharVocabulary.from_text(text)
    ids = vocabulary.encode(text)
    assert vocabulary.decode(ids) == text
    assert set(ids) == set(range(len(vocabulary)))


@given(st.text(min_size=1))
def test_a_stored_vocabulary_is_the_same(text: str) -> None:
    vocabulary = CharVocabulary.from_text(text)
    assert CharVocabulary.from_dict(vocabulary.to_dict()) == vocabulary


def test_ids_follow_the_order_of_the_symbols() -> None:
    vocabulary = CharVocabulary.from_text("cab\n")
    assert vocabulary.symbols == ("\n", "a", "b", "c")
    assert vocabulary.id_of("\n") == 0


def test_an_unseen_character_is_named_with_its_place() -> None:
    with pytest.raises(InputError, match=r"'!' at position 2 .*build the vocabulary"):
        CharVocabulary.from_text("abc").encode("ab!c!")


@pytest.mark.parametrize("identifier", [-1, 3])
def test_an_id_outside_the_vocabulary_is_refused(identifier: int) -> None:
    with pytest.raises(InputError, match=r"ids 0\.\.2"):
        CharVocabulary.from_text("abc").decode([0, identifier])


@pytest.mark.parametrize("symbols", [(), ("b", "a"), ("a", "a"), ("ab",), (1,)])
def test_malformed_symbols_are_refused(symbols: tuple[str, ...]) -> None:
    with pytest.raises(InputError):
        CharVocabulary(symbols)


def test_other_misuse_is_refused() -> None:
    vocabulary = CharVocabulary.from_text("abc")
    with pytest.raises(InputError, match="one character"):
        vocabulary.id_of("ab")
    with pytest.raises(InputError, match="symbols"):
        CharVocabulary.from_dict({"letters": "abc"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        vocabulary.symbols = ("z",)  # type: ignore[misc]
