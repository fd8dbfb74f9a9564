"""Questions over documents, from a file of one's own or from Natural Questions, as rows to train on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from contentrope.corpora import natural_questions as nq
from contentrope.corpora.long_context import long_context
from contentrope.errors import InputError
from contentrope.hf.chat import (
    DOCUMENTS,
    HELD_OUT_SHARE,
    Messages,
    bytes_of,
    encoded,
    lines_of,
    messages_of,
    require_template,
)
from contentrope.hf.documents import Document, Reading, document_of, pool_of, size_of
from contentrope.units import Segmenter

NAMED = "nq"
"""Natural Questions, of which only the part that no measurement scores is trained on; ./nq is a file of that name."""

LEAST_APART = 0.5
"""Of the lines that are not held out: fewer are not trained on for the sake of other documents in the two parts."""


class Readings(NamedTuple):
    training: list[Reading]
    held_out: list[Reading]
    description: dict[str, Any]

    @property
    def pool(self) -> list[Document]:
        """The documents of what is trained on, which may stand beside each other."""
        return pool_of(self.training)

    @property
    def tokens(self) -> int:
        return sum(len(reading.ids) + size_of(reading.documents) for reading in self.training)


class Line(NamedTuple):
    where: str
    documents: list[str]
    messages: Messages


def read_readings(source: str, tokenizer: Any, length: int, segmenter: Segmenter) -> Readings:
    """The lines of a JSON-lines file, or Natural Questions; the last tenth is held out. Lines that share a document
    with it are left out, unless that would be most of them, as where all ask about the same few documents.

    Each line is ``{"documents": ["..."], "messages": [{"role": "user", "content": "..."}, {"role": "assistant",
    "content": "..."}]}``. A line without documents is a conversation that others' documents stand before.
    """
    require_template(tokenizer, source)
    lines, name = _natural_questions() if source == NAMED else _of_file(source)
    if not any(line.documents for line in lines):
        raise InputError(f'{source} has no line with "{DOCUMENTS}", a list of texts: add them, or train without reader')
    found = [_reading(line, tokenizer, length, segmenter) for line in lines]
    if len(found) < 2:
        raise InputError(f"{source} has 1 conversation, and at least 2 are needed: one is held out; take more")
    count = max(1, int(len(found) * HELD_OUT_SHARE))
    held_out = found[-count:]
    before, scored = found[:-count], set(pool_of(held_out))
    apart = [reading for reading in before if scored.isdisjoint(reading.documents)]
    kept = apart if len(apart) >= LEAST_APART * len(before) else before
    description = {
        **name,
        "conversations": len(found),
        "documents": len(pool_of(found)),
        "training": len(kept),
        "held_out": count,
        "left_out": len(before) - len(kept),
        "documents_in_both": len(scored & set(pool_of(kept))),
    }
    return Readings(kept, held_out, description)


def _natural_questions() -> tuple[list[Line], dict[str, Any]]:
    questions = nq.split(long_context().natural_questions()).training
    lines = [
        Line(f"question {n}", [nq.document(one)], nq.conversation(one)) for n, one in enumerate(questions, start=1)
    ]
    plain = json.dumps([line._asdict() for line in lines]).encode()
    return lines, {"name": "Natural Questions, those that are not scored", "sha256": hashlib.sha256(plain).hexdigest()}


def _of_file(path: str) -> tuple[list[Line], dict[str, Any]]:
    raw = bytes_of(path)
    lines = [Line(where, _documents(line, where), messages_of(line, where)) for where, line in lines_of(raw, path)]
    return lines, {"name": Path(path).name, "sha256": hashlib.sha256(raw).hexdigest()}


def _documents(line: dict[str, Any], where: str) -> list[str]:
    found = line.get(DOCUMENTS, [])
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise InputError(f'{where}: "{DOCUMENTS}" is no list of texts; mend or remove it')
    return found


def _reading(line: Line, tokenizer: Any, length: int, segmenter: Segmenter) -> Reading:
    documents = tuple(_cut(line, tokenizer, segmenter))
    ids, answers = encoded(line.messages, tokenizer, line.where)
    size = size_of(documents)
    if size + len(ids) > length + 1:
        raise InputError(
            f"{line.where}: documents of {size} tokens and messages of {len(ids)} do not fit into a row of {length}; "
            "shorten or remove them, or take a larger length"
        )
    if not answers.any():
        raise InputError(f"{line.where}: no answer has a token, so there is nothing to learn; remove it")
    return Reading(documents, ids, answers.float())


def _cut(line: Line, tokenizer: Any, segmenter: Segmenter) -> Iterator[Document]:
    for number, text in enumerate(line.documents, start=1):
        document = document_of(text, tokenizer, segmenter)
        if not document:
            raise InputError(f"{line.where}: document {number} is empty; write something, or remove it")
        yield document
