"""A few kilobytes in the shape of the long-context texts, and their archive."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest

from contentrope.corpora import long_context
from contentrope.corpora.long_context import BABI, LongContext
from contentrope.files import digest_of

PLACES = ("garden", "kitchen", "office", "hallway")
PEOPLE = ("Mary", "John", "Sandra")
QUESTIONS = 45


def write_small(folder: Path) -> None:
    """Every file that is read, by the name that it has in the archive."""
    for name, text in _texts().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def write_archive(path: Path, folder: Path) -> Path:
    with tarfile.open(path, "w:xz") as archive:
        archive.add(folder, long_context.NAME)
    return path


def expect(patch: pytest.MonkeyPatch, folder: Path, archive: Path | None = None) -> None:
    """The checksums of these files take the place of the real ones."""
    files = {path.relative_to(folder).as_posix(): digest_of(path) for path in folder.rglob("*") if path.is_file()}
    patch.setattr(long_context, "FILES", files)
    if archive is not None:
        patch.setattr(long_context, "ARCHIVE", digest_of(archive))


def small_data(folder: Path, patch: pytest.MonkeyPatch) -> LongContext:
    write_small(folder)
    expect(patch, folder)
    return LongContext(folder)


def _texts() -> dict[str, str]:
    draw = Random(0)
    asked = [_question(number) for number in range(QUESTIONS)]
    paragraphs = {
        "title": "Rivers",
        "paragraphs": [
            {"context": "The Elbe is long.", "qas": [{"question": "How?", "answers": [{"text": "long"}] * 2}]}
        ],
    }
    oracle = {"question": "who", "answers": ["Ann", "Ann"], "ctxs": [{"title": "People", "text": "Ann was first."}]}
    found = {
        "books/train/one.txt": "A book to learn from.\n",
        "books/validation/two.txt": "\n\n".join(_paragraph(draw) for _ in range(40)) + "\n",
        "books/validation/three.txt": "The third book.\n\nIt is short.\n",
        "qa/squad-dev-1000.jsonl": _lines(asked),
        "qa/xquad.en.json": json.dumps({"data": [paragraphs]}),
        "qa/nq-open-oracle.jsonl": _lines([oracle]),
        "qa/kv-retrieval-75_keys.jsonl": _lines([_pairs(draw) for _ in range(3)]),
        "wikitext-2-valid.txt": " \n = Lobster = \n",
    }
    for name in BABI.values():
        for split in ("train", "test"):
            found[f"babi/en/{name}_{split}.txt"] = "".join(_story(draw) for _ in range(20))
    return found


def _question(number: int) -> dict[str, Any]:
    answer = f"answer{number:03}"
    query = f"Title: T\nBackground: Passage about {answer} here.\nQuestion: What is number {number}? \nAnswer:"
    return {"title": "T", "query": query, "answers_text": [answer, answer, f"the {answer}"]}


def _pairs(draw: Random) -> dict[str, Any]:
    pairs = [[str(UUID(int=draw.getrandbits(128))), str(UUID(int=draw.getrandbits(128)))] for _ in range(75)]
    return {"ordered_kv_records": pairs, "key": pairs[30][0], "value": pairs[30][1]}


def _paragraph(draw: Random) -> str:
    words = ("so", "the", "old", "house", "stood", "near", "Mr. Grey", "water", "and", "nobody", "came")
    return " ".join(" ".join(draw.choices(words, k=8)).capitalize() + "." for _ in range(5))


def _story(draw: Random) -> str:
    """Two questions, the second on what is told after the first."""
    lines = []
    for number in (1, 5):
        moves = [(draw.choice(PEOPLE), draw.choice(PLACES)) for _ in range(3)]
        lines += [f"{number + place} {who} went to the {where}." for place, (who, where) in enumerate(moves)]
        lines.append(f"{number + 3} Where is {moves[-1][0]}? \t{moves[-1][1]}\t{number + 2}")
    return "\n".join(lines) + "\n"


def _lines(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)
