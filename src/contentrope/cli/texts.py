"""Texts for a model that is trained already: in its own vocabulary, whatever that of the text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from contentrope.corpora import CharVocabulary, fingerprint, shakespeare_text, standard_library_text, text_of
from contentrope.corpora.corpus import STDLIB_CHARACTERS
from contentrope.errors import InputError

TRAINING_SHARE = 0.9
"""That of :func:`contentrope.corpora.load_corpus`."""


def text_named(source: str, characters: int | None = None) -> str:
    """The text that :func:`contentrope.corpora.load_corpus` would split and encode."""
    if source == "stdlib":
        return standard_library_text(STDLIB_CHARACTERS if characters is None else characters)
    text = shakespeare_text() if source == "shakespeare" else text_of(source)
    if characters is not None and not 1 <= characters <= len(text):
        raise InputError(f"characters must be from 1 to {len(text)}, the length of {source!r}; got {characters}")
    return text[:characters]


def split(text: str) -> tuple[str, str]:
    """The part for training and the part held out."""
    cut = int(len(text) * TRAINING_SHARE)
    return text[:cut], text[cut:]


@dataclass(frozen=True, eq=False)
class Encoded:
    """A text as a model's ids, and how many of its characters the model does not know."""

    ids: Tensor
    unseen: int


def encoded(text: str, vocabulary: CharVocabulary) -> Encoded:
    """Refused where characters are unseen and the vocabulary has no symbol for such."""
    known = {*vocabulary.symbols} - {vocabulary.unknown}
    unseen = Counter(character for character in text if character not in known)
    if unseen and vocabulary.unknown is None:
        some = ", ".join(repr(character) for character, _ in unseen.most_common(5))
        raise InputError(
            f"{unseen.total()} characters of the text, such as {some}, are unseen in training, and this model's "
            "vocabulary has no symbol for unknown ones; replace them first"
        )
    return Encoded(vocabulary.encode_tensor(text), unseen.total())


def seen_in_training(text: str, training_text: Mapping[str, Any] | None) -> bool | None:
    """Was the model trained on this very text, split at the same place? None: it was not saved with its text."""
    return None if training_text is None else training_text.get("sha256") == fingerprint(text)
