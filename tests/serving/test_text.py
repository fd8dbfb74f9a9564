"""Text as it comes is the text at once, up to the first stop word; what may still change is held."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contentrope.serving.text import Writing


def of_bytes(ids: Sequence[int]) -> str:
    """A tokenizer of bytes: a letter may need several tokens."""
    return bytes(ids).decode("utf-8", "replace")


def written(text: str, stop: Sequence[str] = ()) -> tuple[list[str], bool]:
    writing, parts = Writing(of_bytes, stop), []
    for byte in text.encode():
        parts.append(writing.add(byte))
        if writing.stopped:
            return parts, True
    return [*parts, writing.rest()], False


@given(st.text(max_size=20))
def test_the_parts_are_the_text(text: str) -> None:
    parts, stopped = written(text)
    assert "".join(parts) == text
    assert not stopped


@given(st.text(alphabet="abé☃", max_size=20), st.lists(st.text(alphabet="abé", min_size=1, max_size=3), max_size=3))
def test_a_stop_word_ends_it_and_is_not_in_it(text: str, stop: list[str]) -> None:
    places = [place for word in stop if (place := text.find(word)) >= 0]
    parts, stopped = written(text, stop)
    assert stopped == bool(places)
    # The first to be complete ends it, which need not be the first to begin.
    ends = min((text.find(word) + len(word) for word in stop if word in text), default=len(text))
    seen = text[:ends]
    assert "".join(parts) == seen[: min((seen.find(word) for word in stop if word in seen), default=len(seen))]


def test_what_is_said_is_never_taken_back() -> None:
    """The beginning of a stop word, and of a letter, wait; nothing else does."""
    assert written("xaby", ["abc"])[0] == ["x", "", "", "aby", ""]
    assert written("xabc", ["abc"])[0] == ["x", "", "", ""]
    assert written("é!")[0] == ["", "é", "!", ""]


@pytest.mark.parametrize("text", [b"\xe2\x98", b"\xff\xff\xff\xff\xff\xffok"])
def test_bytes_that_are_no_text_are_shown_as_such_in_the_end(text: bytes) -> None:
    writing = Writing(of_bytes)
    parts = [writing.add(byte) for byte in text] + [writing.rest()]
    assert "".join(parts) == of_bytes(text)
