"""Character automata, one per kind of text unit. None looks ahead: an end is found as its character arrives.

A step takes the state and the next character; it gives the new state and whether a unit ends here ("fires").
"""

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from contentrope.errors import InputError

Step = Callable[[Any, str], tuple[Any, bool]]

ABBREVIATIONS = ("dr", "etc", "inc", "jr", "ltd", "mr", "mrs", "ms", "prof", "sr", "st", "vs")
DEFAULT_DOCUMENT_MARKER = "<|endoftext|>"


@dataclass(frozen=True)
class Automaton:
    """Where to begin, and one step per character.

    >>> automaton_of("paragraph", None).fires("one\\n \\n\\ntwo")
    [False, False, False, False, False, True, False, False, False, False]
    """

    initial: str | int
    step: Step

    def fires(self, text: str) -> list[bool]:
        """For each character, whether a unit ends with it."""
        state, fired = self.initial, []
        for character in text:
            state, fire = self.step(state, character)
            fired.append(fire)
        return fired


def automaton_of(kind: str, marker: str | None) -> Automaton:
    """The automaton of a kind; records need a marker, documents may have one."""
    if kind not in KINDS:
        raise InputError(f"kind is {kind!r}: choose one of {', '.join(KINDS)}")
    if kind == "document" and marker is None:
        marker = DEFAULT_DOCUMENT_MARKER
    if kind in ("record", "document"):
        if not marker:
            raise InputError(
                f"marker is {marker!r}: kind {kind!r} needs the text that ends a {kind}, as marker='<end>'"
            )
        return Automaton(0, _marker_step(marker))
    if marker is not None:
        raise InputError(f"marker is {marker!r}: kind {kind!r} takes none, leave it out")
    return _WITHOUT_MARKER[kind]


def _line_step(state: str, character: str) -> tuple[str, bool]:
    """A line ends at "\\n". So "\\r\\n" ends it once; a lone "\\r" does not, as a "\\n" may follow it."""
    return state, character == "\n"


_NO_CONTENT = "no content"
_CONTENT = "content"
_NEWLINE = "content, then a newline"


def _paragraph_step(state: str, character: str) -> tuple[str, bool]:
    """A paragraph ends at the newline that makes a blank line; more blank lines open the next paragraph."""
    if not character.isspace():
        return _CONTENT, False
    if character != "\n" or state == _NO_CONTENT:
        return state, False
    return (_NO_CONTENT, True) if state == _NEWLINE else (_NEWLINE, False)


_ALWAYS_FINAL = frozenset("!?…。！？")
# What stands before a full stop, beside the states above: a prefix of an abbreviation, or one of these.
_NUMBER = "a digit"
_LETTER = "a single letter"
_WORD = "a word"
_PREFIXES = frozenset(word[:n] for word in ABBREVIATIONS for n in range(1, len(word) + 1))


def _sentence_step(state: str, character: str) -> tuple[str, bool]:
    """A sentence ends at its closing mark, or at a blank line, once it has a letter or digit.

    A full stop after a single letter ("U.S."), an abbreviation or a digit ("3.14") does not end it: only what
    follows could tell. A sentence that does end so runs on to the next mark or blank line. A closing quote or
    bracket after the mark opens the next sentence.
    """
    if character.isalnum():
        return _extend_word(state, character), False
    if state == _NO_CONTENT:
        return state, False
    if character in _ALWAYS_FINAL or (character == "." and _ends_with_full_stop(state)):
        return _NO_CONTENT, True
    if character == "\n":
        return (_NO_CONTENT, True) if state == _NEWLINE else (_NEWLINE, False)
    if character.isspace():
        return (state if state == _NEWLINE else _CONTENT), False
    if state not in (_CONTENT, _NEWLINE) and _continues_word(character):
        return _WORD, False
    return _CONTENT, False


def _extend_word(state: str, character: str) -> str:
    if not character.isalpha():
        return _NUMBER
    first = state in (_NO_CONTENT, _CONTENT, _NEWLINE)
    word = character.lower() if first else state + character.lower()
    if word in _PREFIXES:
        return word
    return _LETTER if first else _WORD


def _ends_with_full_stop(state: str) -> bool:
    single_letter = state == _LETTER or len(state) == 1
    return not (single_letter or state == _NUMBER or state in ABBREVIATIONS)


def _continues_word(character: str) -> bool:
    """Apostrophes and combining marks: "don't" is no "t", and an accent is no end of a word."""
    return character in "'’" or unicodedata.category(character).startswith("M")


def _marker_step(marker: str) -> Step:
    """Knuth-Morris-Pratt: the state is how much of the marker has been matched. Matches do not overlap."""
    fallback = [0] * len(marker)
    matched = 0
    for i in range(1, len(marker)):
        while matched and marker[i] != marker[matched]:
            matched = fallback[matched - 1]
        matched += marker[i] == marker[matched]
        fallback[i] = matched

    def step(state: int, character: str) -> tuple[int, bool]:
        while state and character != marker[state]:
            state = fallback[state - 1]
        state += character == marker[state]
        return (0, True) if state == len(marker) else (state, False)

    return step


_WITHOUT_MARKER = {
    "line": Automaton("", _line_step),
    "sentence": Automaton(_NO_CONTENT, _sentence_step),
    "paragraph": Automaton(_NO_CONTENT, _paragraph_step),
}
KINDS = (*_WITHOUT_MARKER, "record", "document")
