"""What a model is fine-tuned on: texts, conversations, documents, and hidden facts, in one source of batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from contentrope.corpora import read_text
from contentrope.errors import InputError
from contentrope.hf.characters import Encoded, encode
from contentrope.hf.chat import ChatRows, Conversations, read_conversations
from contentrope.hf.documents import Evened, Marked, ReadingRows, Rows, among_others, pool_of
from contentrope.hf.passages import PassageRows
from contentrope.hf.readings import NAMED, Readings, read_readings
from contentrope.training import Batch, Batches, Mixed, RetrievalRows, Windows
from contentrope.units import Segmenter

NOTHING = torch.zeros(0, dtype=torch.int64)
READING_SHARE = 0.75
"""Of the rows made of texts, with documents in them; the others keep the model able to read running text."""
HELD_OUT_ROWS = 64
"""Made of held-out text, where no held-out questions are there to be measured."""


class Reader(NamedTuple):
    """Rows are documents as memory units, and what reads them."""

    segmenter: Segmenter
    distractors: int | None = None
    """Documents of other lines in a row at most; None: as many as fit."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """Texts, conversations, or both, as token ids."""

    text: Encoded
    chat: Conversations | None = None
    readings: Readings | None = None
    """Conversations with documents, instead of ``chat``."""
    reader: Reader | None = None
    description: dict[str, Any]
    """Which they are, as JSON."""

    @property
    def ids(self) -> list[Tensor]:
        """Everything, to look at."""
        chat = () if self.chat is None else (*self.chat.training, *self.chat.held_out)
        readings = () if self.readings is None else (*self.readings.training, *self.readings.held_out)
        units = (unit for document in pool_of(readings) for unit in document)
        read = [*(conversation.ids for conversation in chat), *(reading.ids for reading in readings)]
        return [*self.text, *read, *map(torch.tensor, units)]

    def batches(self, tokenizer: Any, length: int, retrieval: float, device: str) -> Batches:
        """Rows of texts and of conversations by how many tokens each has; of all rows of text, a share of hidden
        facts, and with a reader a larger one of documents."""
        if self.reader is not None:
            return self._with_documents(tokenizer, length, retrieval, device)
        text, chat = self.text.training, () if self.chat is None else self.chat.training
        if not len(text):
            return ChatRows(chat, length, device=device)
        batches: Batches = Windows(text, length, device)
        if chat:
            tokens = sum(len(conversation.ids) for conversation in chat)
            batches = Mixed(batches, ChatRows(chat, length, device=device), tokens / (tokens + len(text)))
        return self._with_facts(batches, tokenizer, length, retrieval, device)

    def _with_facts(self, batches: Batches, tokenizer: Any, length: int, share: float, device: str) -> Batches:
        if not share:
            return batches
        return Mixed(batches, RetrievalRows(self.text.training, length, tokenizer, device=device), share)

    def _with_documents(self, tokenizer: Any, length: int, retrieval: float, device: str) -> Batches:
        assert self.reader is not None
        text, rows, found = self.text.training, Rows(self.reader.segmenter, length, device), self.readings
        batches: Batches | None = None
        if len(text):
            plain = self._with_facts(Windows(text, length, device), tokenizer, length, retrieval, device)
            passages = PassageRows(text, tokenizer, rows)
            batches = Mixed(Marked(plain, rows.segmenter), passages, READING_SHARE)
        if found is None:
            assert batches is not None, "there are texts, conversations, or both"
            return Evened(batches)
        asked = ReadingRows(found.training, found.pool, rows, self.reader.distractors)
        if batches is None:
            return asked
        return Evened(Mixed(batches, asked, found.tokens / (found.tokens + len(text))))

    def held_out_readings(self, tokenizer: Any, length: int) -> Iterator[Batch]:
        """What is measured of a reader, the same rows at every call: held-out questions, each among other documents,
        or else rows made of held-out text."""
        assert self.reader is not None
        rows, found = Rows(self.reader.segmenter, length), self.readings
        if found is None:
            passages = PassageRows(self.text.held_out, tokenizer, rows)
            yield from (passages.at(step, 1, 0) for step in range(HELD_OUT_ROWS))
            return
        pool = pool_of(list(chain(found.held_out, found.training)))
        for number, reading in enumerate(found.held_out):
            rng = np.random.default_rng((number, 6))
            yield rows.batch([among_others(reading, pool, length, self.reader.distractors, rng)])


def read_data(
    texts: Sequence[str],
    chat: str | None,
    characters: int | None,
    tokenizer: Any,
    length: int,
    reader: Reader | None = None,
) -> Data:
    """Refused where a part is too short for windows of this length."""
    if not texts and chat is None:
        raise InputError("there is nothing to train on: name texts with --text, conversations with --data, or both")
    if chat == NAMED and reader is None:
        raise InputError(f"--data {NAMED} are questions over documents; pass --reader too")
    read = read_text(texts, characters) if texts else None
    text = Encoded(NOTHING, NOTHING) if read is None else encode(read, tokenizer)
    if read is not None and min(map(len, text)) <= length:
        raise InputError(
            f"the text has {len(text.training)} tokens to train on and {len(text.held_out)} held out, too few for "
            f"windows of length {length}; take a longer text, or a shorter length"
        )
    conversations = read_conversations(chat, tokenizer, length) if chat is not None and reader is None else None
    readings = None
    if chat is not None and reader is not None:
        readings = read_readings(chat, tokenizer, length, reader.segmenter)
    description: dict[str, Any] = {} if read is None else {"corpus": read.description}
    if (found := conversations or readings) is not None:
        description["data"] = found.description
    data = Data(text=text, chat=conversations, readings=readings, reader=reader, description=description)
    if reader is not None and len(text.training):
        data.batches(tokenizer, length, 0.0, "cpu")  # refuses rows that are too short for documents
    return data
