"""Texts split into what is trained on and what is held out: as characters, and as ids of a vocabulary."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from contentrope.corpora.characters import UNKNOWN, CharVocabulary
from contentrope.corpora.shakespeare import shakespeare_text
from contentrope.corpora.stdlib import standard_library_text
from contentrope.corpora.text_files import fingerprint, joined, text_of
from contentrope.errors import InputError, quoted

TRAINING_SHARE = 0.9
SEARCH_SHARE = 0.1
STDLIB_CHARACTERS = 1_200_000


@dataclass(frozen=True)
class Text:
    """The first nine tenths of a text are for training, the rest is held out."""

    name: str
    whole: str

    def __post_init__(self) -> None:
        if not self.training:
            raise InputError(f"{self.name!r}: {len(self.whole)} characters cannot be split; take more")

    @property
    def training(self) -> str:
        return self.whole[: int(len(self.whole) * TRAINING_SHARE)]

    @property
    def held_out(self) -> str:
        return self.whole[int(len(self.whole) * TRAINING_SHARE) :]

    @property
    def description(self) -> dict[str, Any]:
        """Which text it is, as JSON, to store with results."""
        return {
            "name": self.name,
            "characters": len(self.whole),
            "sha256": fingerprint(self.whole),
            "training": len(self.training),
            "held_out": len(self.held_out),
        }


def read_text(sources: Sequence[str | Path], characters: int | None = None) -> Text:
    """The texts one after the other, or only their first ``characters``.

    A source is ``shakespeare``, ``stdlib``, or a file or folder (``./stdlib`` if it has that name).

    >>> text = read_text(["stdlib"], characters=1_000)
    >>> len(text.training), len(text.held_out)
    (900, 100)
    """
    if characters is not None and (isinstance(characters, bool) or not isinstance(characters, int) or characters < 1):
        raise InputError(f"characters must be a positive integer, got {characters!r}")
    whole = joined([_source(source, characters) for source in sources])
    # The last part of a path: results should not differ by where a text lies.
    name = ", ".join(os.path.basename(os.path.abspath(source)) for source in sources)
    if characters is not None and characters > len(whole):
        raise InputError(f"characters must be from 1 to {len(whole)}, the length of {name!r}; got {characters}")
    return Text(name, whole[:characters])


@dataclass(frozen=True, eq=False)  # tensors have no one truth value to compare by
class Corpus:
    """A text as the ids of a vocabulary. ``description`` is JSON, to store with results."""

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
                raise InputError(f"no {part} text is left in {self.name!r}; take more characters")
            if int(ids.min()) < 0 or int(ids.max()) >= len(self.vocabulary):
                raise InputError(f"{part} has ids outside the vocabulary (0..{len(self.vocabulary) - 1})")

    def search_split(self) -> Corpus:
        """For choosing hyper-parameters: the last tenth of the training text is held out, and the text held out here
        is left alone. The vocabulary stays, so that models keep their size.

        >>> search = load_corpus("stdlib", characters=1_000).search_split()
        >>> len(search.training), len(search.held_out)
        (810, 90)
        """
        held_out = int(len(self.training) * SEARCH_SHARE)
        cut = len(self.training) - held_out
        changed = {"training": cut, "held_out": held_out, "unseen": 0, "search_share": SEARCH_SHARE}
        return replace(
            self,
            training=self.training[:cut],
            held_out=self.training[cut:],
            description={**self.description, **changed},
        )


def load_corpus(source: str | Path, *, characters: int | None = None) -> Corpus:
    """One source of :func:`read_text`, encoded by the characters in it.

    The vocabulary of a file or folder is that of its training part, and U+FFFD for whatever else turns up;
    ``unseen`` in the description counts how often the held-out part needs it. The other two have fixed vocabularies,
    without U+FFFD: that of the complete Tiny Shakespeare, and that of the standard library text taken.

    >>> corpus = load_corpus("stdlib", characters=1_000)
    >>> len(corpus.training), len(corpus.held_out)
    (900, 100)
    """
    text = read_text([source], characters)
    if source in ("shakespeare", "stdlib"):
        complete = shakespeare_text() if source == "shakespeare" else text.whole
        vocabulary, seen = CharVocabulary.from_text(complete), {*complete}
    else:
        vocabulary, seen = CharVocabulary.from_text(text.training, unknown=UNKNOWN), {*text.training}
    unseen = sum(character not in seen for character in text.held_out)
    description = {**text.description, "symbols": len(vocabulary), "unseen": unseen}
    training, held_out = vocabulary.encode_tensor(text.training), vocabulary.encode_tensor(text.held_out)
    return Corpus(text.name, vocabulary, training, held_out, description)


def _source(source: str | Path, characters: int | None) -> str:
    if source == "shakespeare":
        return shakespeare_text()
    if source == "stdlib":
        return standard_library_text(STDLIB_CHARACTERS if characters is None else characters)
    if not os.path.exists(source):
        raise InputError(
            f"there is no file or folder {quoted(str(source))}, nor is it shakespeare or stdlib; check the path"
        )
    return text_of(source)
