"""Texts and questions for long contexts: books split by book, questions with their passages, keys with their values.

They are not part of the package. They are taken from the first of these places:

1. the archive, or the folder unpacked from it, that the environment variable ``CONTENTROPE_DATA`` names;
2. the folder ``long-context``, else the archive ``long-context.tar.xz``, in the cache folder (see ``shakespeare.py``).

An archive is unpacked once, into the cache. The SHA-256 of an archive, and of every file that is read, must be those of
``long_context_files.py``. A variable that is set but empty counts as not set.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from contentrope.corpora.long_context_files import ARCHIVE, FILES
from contentrope.corpora.shakespeare import CACHE_VARIABLE, cache_folder
from contentrope.errors import InputError
from contentrope.files import digest_of, writing

DATA_VARIABLE = "CONTENTROPE_DATA"
NAME = "long-context"
"""Of the folder, in the archive and in the cache."""
BABI = {
    1: "qa1_single-supporting-fact",
    2: "qa2_two-supporting-facts",
    4: "qa4_two-arg-relations",
    5: "qa5_three-arg-relations",
}
"""The tasks of bAbI that are there, by number."""


class Question(NamedTuple):
    """A question that a passage answers; any of the answers will do."""

    question: str
    answers: tuple[str, ...]
    passage: str
    title: str


class KeyValues(NamedTuple):
    """Pairs of a key and its value, in order, and the pair that is asked for."""

    pairs: tuple[tuple[str, str], ...]
    key: str
    value: str


class Story(NamedTuple):
    """Facts in the order in which they were told, and a question on them.

    ``supporting``: the places, among the facts, of those that the answer follows from.
    """

    facts: tuple[str, ...]
    question: str
    answer: str
    supporting: tuple[int, ...]


@dataclass(frozen=True)
class LongContext:
    """The texts in a folder; see :func:`long_context`. A file is checked whenever it is read."""

    folder: Path

    def books(self, split: Literal["train", "validation"]) -> dict[str, str]:
        """Title and author, as the file is named, to text. No book is in both splits."""
        if split not in ("train", "validation"):
            raise InputError(f"books are split into train and validation; there is no {split!r}")
        names = sorted(name for name in FILES if name.startswith(f"books/{split}/"))
        return {Path(name).stem: self._text(name) for name in names}

    def squad(self) -> list[Question]:
        """A thousand questions of SQuAD's development set."""
        return [_of_squad(line) for line in self._lines("qa/squad-dev-1000.jsonl")]

    def xquad(self) -> list[Question]:
        """The English questions of XQuAD, also of SQuAD's development set."""
        return [
            Question(asked["question"], _distinct(a["text"] for a in asked["answers"]), part["context"], entry["title"])
            for entry in json.loads(self._text("qa/xquad.en.json"))["data"]
            for part in entry["paragraphs"]
            for asked in part["qas"]
        ]

    def natural_questions(self) -> list[Question]:
        """Questions that people asked a search engine, each with the one passage of Wikipedia that answers it."""
        return [
            Question(line["question"], _distinct(line["answers"]), line["ctxs"][0]["text"], line["ctxs"][0]["title"])
            for line in self._lines("qa/nq-open-oracle.jsonl")
        ]

    def key_values(self) -> list[KeyValues]:
        """Five hundred lists of 75 pairs of random identifiers."""
        return [
            KeyValues(tuple((key, value) for key, value in line["ordered_kv_records"]), line["key"], line["value"])
            for line in self._lines("qa/kv-retrieval-75_keys.jsonl")
        ]

    def babi(self, task: int, split: Literal["train", "test"]) -> list[Story]:
        """Every question of one of the tasks of bAbI, with the facts told before it."""
        if task not in BABI or split not in ("train", "test"):
            raise InputError(f"of bAbI there are tasks {sorted(BABI)}, train and test; not task {task!r}, {split!r}")
        return list(_stories(self._text(f"babi/en/{BABI[task]}_{split}.txt")))

    def wikitext(self) -> str:
        """The validation part of WikiText-2, tokenised, with ``<unk>``."""
        return self._text("wikitext-2-valid.txt")

    def _lines(self, name: str) -> list[Any]:
        return [json.loads(line) for line in self._text(name).splitlines()]

    def _text(self, name: str) -> str:
        path = self.folder / name
        try:
            data = path.read_bytes()
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error}); unpack the archive again in its place") from error
        found = hashlib.sha256(data).hexdigest()
        if found != FILES[name]:
            raise InputError(
                f"{path} has changed: its SHA-256 is {found}, expected {FILES[name]}; unpack the archive again"
            )
        return data.decode("utf-8")


def long_context() -> LongContext:
    """The texts, from the first place that has them; see the module for the places.

    >>> len(long_context().books("validation"))  # doctest: +SKIP
    3
    """
    named = os.environ.get(DATA_VARIABLE)
    if named and not os.path.exists(named):
        raise InputError(f"{DATA_VARIABLE} names {named}, which is not there; let it name {NAME}.tar.xz, or unset it")
    place = Path(named) if named else _in_cache()
    if place.is_dir():
        # An archive that was unpacked by hand has the folder in it.
        return LongContext(place / NAME if (place / NAME).is_dir() else place)
    return LongContext(_unpacked(place))


def is_at_hand() -> bool:
    """Whether the texts are named, or in the cache; whether they are the right ones is seen when they are read."""
    return bool(os.environ.get(DATA_VARIABLE)) or any(place.exists() for place in _places())


def _places() -> list[Path]:
    return [cache_folder() / NAME, cache_folder() / f"{NAME}.tar.xz"]


def _in_cache() -> Path:
    for place in _places():
        if place.exists():
            return place
    raise InputError(
        f"the long-context texts are needed and are not part of the package: let {DATA_VARIABLE} name {NAME}.tar.xz "
        f"(SHA-256 {ARCHIVE}) or the folder unpacked from it, or save that archive in {cache_folder()}"
    )


def _unpacked(archive: Path) -> Path:
    """The folder made of an archive, which gets its name when it is complete."""
    found = digest_of(archive)
    if found != ARCHIVE:
        raise InputError(
            f"{archive} is not the archive of the long-context texts: its SHA-256 is {found}, expected {ARCHIVE}; "
            f"fetch it again, or let {DATA_VARIABLE} name another"
        )
    folder = cache_folder() / NAME
    if folder.is_dir():
        return folder
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{NAME}."))
    try:
        with writing(folder):
            _extract(archive, place)
            (place / NAME).rename(folder)
    except OSError as error:
        if not folder.is_dir():  # else another process was faster
            raise InputError(f"{error}; or set {CACHE_VARIABLE} to another folder") from error
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return folder


def _extract(archive: Path, place: Path) -> None:
    try:
        with tarfile.open(archive, "r:xz") as opened:
            opened.extractall(place, filter="data")  # refuses what would lie outside, links and devices
    except tarfile.TarError as error:
        raise InputError(f"{archive} cannot be unpacked ({error}); fetch it again") from error


def _of_squad(line: dict[str, Any]) -> Question:
    said = line["query"].removeprefix(f"Title: {line['title']}\nBackground: ").removesuffix("\nAnswer:")
    passage, _, question = said.rpartition("\nQuestion: ")
    return Question(question.strip(), _distinct(line["answers_text"]), passage, line["title"])


def _stories(text: str) -> Iterator[Story]:
    """A story's lines are numbered from 1; those of questions count too, and have tabs in them."""
    facts: dict[int, str] = {}
    for line in text.splitlines():
        number, _, said = line.partition(" ")
        if number == "1":
            facts = {}
        if "\t" not in said:
            facts[int(number)] = said.strip()
            continue
        question, answer, supporting = said.split("\t")
        places = [list(facts).index(int(one)) for one in re.findall(r"\d+", supporting)]
        yield Story(tuple(facts.values()), question.strip(), answer.strip(), tuple(sorted(places)))


def _distinct(texts: Any) -> tuple[str, ...]:
    """Each once, in order."""
    return tuple(dict.fromkeys(texts))
