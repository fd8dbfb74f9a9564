"""A character vocabulary is a bijection between its symbols and 0..n-1."""

import copy
import dataclasses
import pickle
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from contentrope.corpora import UNKNOWN, CharVocabulary
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


# Lone surrogates too: a str can hold them.
@given(st.text(st.characters(), min_size=1), st.text(st.characters()))
@example("a\ud83d\ude00", "\U0001f600")
def test_the_quick_encoding_is_that_of_the_definition(text: str, more: str) -> None:
    vocabulary = CharVocabulary.from_text(text + more)
    ids = vocabulary.encode_tensor(text)
    assert ids.dtype == torch.int64
    assert ids.tolist() == vocabulary.encode(text) == [vocabulary.symbols.index(character) for character in text]


def test_one_row_of_a_tensor_can_be_decoded() -> None:
    vocabulary = CharVocabulary.from_text("abc")
    assert vocabulary.decode(torch.tensor([2, 0])) == "ca"
    with pytest.raises(InputError, match=r"one row of ids, got shape \(1, 2\)"):
        vocabulary.decode(torch.tensor([[2, 0]]))


def test_an_empty_text_has_no_ids() -> None:
    assert CharVocabulary.from_text("abc").encode("") == []
    assert CharVocabulary.from_text("abc").encode_tensor("").shape == (0,)


# --- the symbol for all others ----------------------------------------------------------------------------------


@given(st.text(min_size=1), st.text())
def test_unseen_characters_become_the_unknown_one_and_others_stay(text: str, other: str) -> None:
    vocabulary = CharVocabulary.from_text(text, unknown=UNKNOWN)
    expected = "".join(character if character in text else UNKNOWN for character in other)
    assert vocabulary.decode(vocabulary.encode(other)) == expected
    assert vocabulary.decode(vocabulary.encode(text)) == text
    assert set(vocabulary.symbols) == {*text, UNKNOWN}


@pytest.mark.parametrize("unknown", ["!", "b", "~"])
def test_any_symbol_may_stand_for_the_others(unknown: str) -> None:
    vocabulary = CharVocabulary.from_text("abc", unknown=unknown)
    assert vocabulary.decode(vocabulary.encode("a\x00c\U0010ffff")) == f"a{unknown}c{unknown}"


def test_unknown_is_stored_only_where_it_is_set() -> None:
    plain = CharVocabulary.from_text("ba").to_dict()
    assert (plain["symbols"], "unknown" in plain) == ("ab", False)
    stored = {"symbols": "ab" + UNKNOWN, "unknown": UNKNOWN}
    forgiving = CharVocabulary.from_text("ba", unknown=UNKNOWN)
    assert forgiving.to_dict().items() >= stored.items()
    assert CharVocabulary.from_dict(stored) == forgiving != CharVocabulary.from_dict({"symbols": "ab" + UNKNOWN})


def test_a_place_asked_for_by_name_is_never_that_of_unknown() -> None:
    """Else a text without newlines would end its lines at every unknown character."""
    vocabulary = CharVocabulary.from_text("abc", unknown=UNKNOWN)
    assert vocabulary.id_of(UNKNOWN) == 3
    with pytest.raises(InputError, match=r"'\\n' at position 0 is not among the 4 symbols"):
        vocabulary.id_of("\n")


def test_unknown_must_be_a_symbol() -> None:
    with pytest.raises(InputError, match=r"unknown must be one of the symbols, got '\?'"):
        CharVocabulary(("a", "b"), "?")
    with pytest.raises(InputError, match=r"must be one character, got '\?\?'"):
        CharVocabulary.from_text("ab", unknown="??")


@pytest.mark.parametrize("unknown", [None, UNKNOWN])
def test_an_empty_text_makes_no_vocabulary(unknown: str | None) -> None:
    with pytest.raises(InputError, match="not empty"):
        CharVocabulary.from_text("", unknown=unknown)


@pytest.mark.parametrize("stored", [{"symbols": 5}, {"symbols": "ab", "unknown": 1}, {"symbols": "ab", "more": ""}, {}])
def test_a_damaged_stored_vocabulary_is_refused(stored: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="a stored vocabulary"):
        CharVocabulary.from_dict(stored)


def test_copies_are_equal_and_usable() -> None:
    vocabulary = CharVocabulary.from_text("abc", unknown=UNKNOWN)
    for other in (copy.deepcopy(vocabulary), pickle.loads(pickle.dumps(vocabulary))):
        assert other == vocabulary
        assert hash(other) == hash(vocabulary)
        assert other.encode("cab!") == [2, 0, 1, 3]


def test_other_misuse_is_refused() -> None:
    vocabulary = CharVocabulary.from_text("abc")
    with pytest.raises(InputError, match="one character"):
        vocabulary.id_of("ab")
    with pytest.raises(InputError, match="symbols"):
        CharVocabulary.from_dict({"letters": "abc"})
    with pytest.raises(InputError, match="bytes"):
        vocabulary.encode(b"abc")  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        vocabulary.symbols = ("z",)  # type: ignore[misc]


def test_a_symbol_in_the_place_of_another_is_noticed() -> None:
    stored = CharVocabulary.from_text("abc").to_dict()
    with pytest.raises(InputError, match="not those it was stored with"):
        CharVocabulary.from_dict({**stored, "symbols": "abd"})
    assert CharVocabulary.from_dict({"symbols": "abd"}).symbols == ("a", "b", "d")
