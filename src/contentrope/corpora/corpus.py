"""A text as a model meets it: ids to train on, ids held out, and the vocabulary of both."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from contentrope.corpora.characters import UNKNOWN, CharVocabulary
from contentrope.corpora.shakespeare import shakespeare_text
from contentrope.corpora.stdlib import fingerprint, standard_library_text
from contentrope.corpora.text_files import text_of
from contentrope.errors import InputError

STDLIB_CHARACTERS = 1_200_000


@dataclass(frozen=True, eq=False)  # tensors have no one truth value to compare by
class Corpus:
    """The beginning of a text to train on, the rest held out. ``description`` is JSON, to store with results."""

    name: str
    vocabulary: CharVocabulary
    training: Int[Tensor, "training"]
    held_out: Int[Tensor, "held_out"]
    description: dict[str, Any]

    def __post_init__(self) -> None:
        for part in ("training", "held_out"):
            ids = getattr(self, part)
            if ids.ndim != 1 or ids.dtype != torch.int64:
                raise InputError(f"{part} must be 1-D int64, got {tuple(ids.shape)} {ids.dtype}")
            if not len(ids):
                raise InputError(f"no {part} text is left in {self.name!r}; take more characters or another share")
            if int(ids.min()) < 0 or int(ids.max()) >= len(self.vocabulary):
                raise InputError(f"{part} has ids outside the vocabulary (0..{len(self.vocabulary) - 1})")

    def search_split(self, share: float = 0.1) -> Corpus:
        """For choosing hyper-parameters: the last ``share`` of the training text is held out, and the text held
        out here is left alone. The vocabulary stays, so that models keep their size.

        >>> search = load_corpus("stdlib", characters=1_000).search_split()
        >>> len(search.training), len(search.held_out)
        (810, 90)
        """
        _require_share("share", share)
        held_out = int(len(self.training) * share)
        cut = len(self.training) - held_out
        changed = {"training": cut, "held_out": held_out, "unseen": 0, "search_share": share}
        return replace(
            self,
            training=self.training[:cut],
            held_out=self.training[cut:],
            description={**self.description, **changed},
        )


def load_corpus(source: str | Path, *, characters: int | None = None, training_share: float = 0.9) -> Corpus:
    """The corpus ``shakespeare``, ``stdlib``, or the text of a file or folder (``./stdlib`` if it has that name).

    ``characters`` takes only the first so many; of them, ``training_share`` is for training. The vocabulary of a
    file or folder is that of its training part, and U+FFFD for whatever else turns up; ``unseen`` in the description
    counts how often the held-out part needs it. The other two have fixed vocabularies, without U+FFFD: that of
    the complete Tiny Shakespeare, and that of the standard library text taken.

    >>> corpus = load_corpus("stdlib", characters=1_000)
    >>> len(corpus.training), len(corpus.held_out)
    (900, 100)
    """
    if characters is not None and (isinstance(characters, bool) or not isinstance(characters, int) or characters < 1):
        raise InputError(f"characters must be a positive integer, got {characters!r}")
    _require_share("training_share", training_share)
    text, vocabulary = _text_and_vocabulary(source, characters)
    cut = int(len(text) * training_share)
    if not 0 < cut < len(text):
        raise InputError(
            f"{str(source)!r}: {len(text)} characters cannot be split by training_share={training_share}; "
            "take more characters"
        )
    if vocabulary is None:
        vocabulary = CharVocabulary.from_text(text[:cut], unknown=UNKNOWN)
    # The last part of a path: results should not differ by where a text lies.
    return _split(os.path.basename(os.path.abspath(source)), text, cut, vocabulary)


def _text_and_vocabulary(source: str | Path, characters: int | None) -> tuple[str, CharVocabulary | None]:
    """The text taken, and its vocabulary where the split has no part in it."""
    if source == "shakespeare":
        whole = shakespeare_text()
        return _first(whole, characters, source), CharVocabulary.from_text(whole)
    if source == "stdlib":
        text = standard_library_text(characters or STDLIB_CHARACTERS)
        return text, CharVocabulary.from_text(text)
    if not os.path.exists(source):
        raise InputError(f"no corpus {str(source)!r}: it is neither shakespeare nor stdlib nor a file or folder here")
    return _first(text_of(source), characters, source), None


def _split(name: str, text: str, cut: int, vocabulary: CharVocabulary) -> Corpus:
    training, held_out = vocabulary.encode_tensor(text[:cut]), vocabulary.encode_tensor(text[cut:])
    known = {*vocabulary.symbols} if vocabulary.unknown is None else {*text[:cut]}
    description = {
        "name": name,
        "characters": len(text),
        "sha256": fingerprint(text),
        "symbols": len(vocabulary),
        "training": len(training),
        "held_out": len(held_out),
        "unseen": sum(character not in known for character in text[cut:]),
    }
    return Corpus(name, vocabulary, training, held_out, description)


def _first(text: str, characters: int | None, source: str | Path) -> str:
    if characters is not None and characters > len(text):
        raise InputError(f"characters={characters} asked, but {str(source)!r} has {len(text)}; ask for less")
    return text[:characters]


def _require_share(name: str, share: float) -> None:
    if not 0.0 < share < 1.0:
        raise InputError(f"{name} must lie between 0 and 1, got {share}")
