"""Rows in which documents are memory units, and what stands behind them reads them.

Documents are cut into units by the rule of the store, and what reads them is written as a service writes it. So a model
is trained on what it is asked to do with a store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.random import Generator
from torch import Tensor

from contentrope.hf.finetune import units_named
from contentrope.hf.units import rule_of
from contentrope.training.batches import IGNORED, Batch, Batches
from contentrope.units import Segmenter
from contentrope.units.cutting import Ids, cut

FULL = 0.5
"""Share of the rows with as many documents as fit; in the others any number is as likely."""

Document = tuple[Ids, ...]
"""Its memory units."""


class Reading(NamedTuple):
    """What makes a row: documents, what reads them, and how much each of its tokens counts (0: not at all)."""

    documents: tuple[Document, ...]
    ids: Int[Tensor, "tokens"]
    weights: Float[Tensor, "tokens"]


def segmenter_of(config: Any, tokenizer: Any, units: str, marker: str | None, longest: int) -> Segmenter:
    """As :func:`contentrope.hf.attach` makes it, before there is a model."""
    vocabulary = config.get_text_config().vocab_size
    return Segmenter(rule_of(units_named(units), tokenizer, marker, vocabulary), max_length=longest)


def document_of(text: str, tokenizer: Any, segmenter: Segmenter) -> Document:
    """The memory units of a text, as a store cuts it; none if it has no token."""
    ids = tuple(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    return tuple(cut(ids, segmenter, "long")) if ids else ()


def size_of(documents: Iterable[Document]) -> int:
    """Tokens of documents; a unit that several of them have is read once."""
    return sum(map(len, {unit for document in documents for unit in document}))


def pool_of(readings: Iterable[Reading]) -> list[Document]:
    """The documents of readings, each once."""
    return list(dict.fromkeys(document for reading in readings for document in reading.documents))


class Rows:
    """From readings to batches of ``length`` tokens a row, with the marks of memory units."""

    def __init__(self, segmenter: Segmenter, length: int, device: torch.device | str = "cpu") -> None:
        self.segmenter, self.length, self.device = segmenter.marked_by_mask(), length, device

    def batch(self, readings: Sequence[Reading], *, weighted: bool = False) -> Batch:
        """What fills a row up stands behind all that counts, where nothing sees it."""
        shape = len(readings), self.length + 1
        ids, weights = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape)
        ends, memory = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
        for row, reading in enumerate(readings):
            units = list(dict.fromkeys(unit for document in reading.documents for unit in document))
            edges = list(accumulate(map(len, units)))
            begin = edges[-1] if edges else 0
            end = begin + len(reading.ids)
            ids[row, :begin] = torch.tensor([number for unit in units for number in unit], dtype=torch.int64)
            ids[row, begin:end], ids[row, end:] = reading.ids, reading.ids[-1]
            weights[row, begin:end] = reading.weights
            ends[row, [edge - 1 for edge in edges]] = True
            ends[row, begin:end] = ends_in(reading.ids[None], self.segmenter)[0]
            memory[row, :begin] = True
        targets = ids.masked_fill(weights == 0, IGNORED)[:, 1:]
        marks = {"unit_ends": ends[:, :-1], "unit_memory": memory[:, :-1]}
        batch = Batch({"ids": ids[:, :-1], **marks}, targets, weights[:, 1:] if weighted else None)
        return batch.map(lambda x: x.to(self.device))


def ends_in(ids: Int[Tensor, "rows seq"], segmenter: Segmenter) -> Bool[Tensor, "rows seq"]:
    """Where units end by the rule, in texts that begin with the first of these tokens."""
    return segmenter.advance(segmenter.initial(len(ids), ids.device), ids)[0].closes


class Marked:
    """Batches of running text with the marks that rows with documents have: nothing in them is memory."""

    def __init__(self, batches: Batches, segmenter: Segmenter) -> None:
        self.batches, self.segmenter = batches, segmenter.marked_by_mask()
        self.weighted = getattr(batches, "weighted", False)

    def at(self, step: int, rows: int, seed: int) -> Batch:
        batch = self.batches.at(step, rows, seed)
        ends = ends_in(batch.inputs["ids"], self.segmenter)
        marks = {"unit_ends": ends, "unit_memory": torch.zeros_like(ends)}
        return replace(batch, inputs={**batch.inputs, **marks})


class Unmarked:
    """The same rows as one text, for a model without addresses."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        self.weighted = getattr(batches, "weighted", False)

    def at(self, step: int, rows: int, seed: int) -> Batch:
        batch = self.batches.at(step, rows, seed)
        return replace(batch, inputs={"ids": batch.inputs["ids"]})


class Evened:
    """Batches in which every row counts alike: beside thousands of tokens of text, an answer of a few would be lost."""

    weighted = True

    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def at(self, step: int, rows: int, seed: int) -> Batch:
        batch = self.batches.at(step, rows, seed)
        weights = (batch.targets != IGNORED).float()
        if batch.weights is not None:
            weights = weights * batch.weights
        return replace(batch, weights=weights / weights.sum(1, keepdim=True))


class ReadingRows:
    """Random readings, each among documents of others, in random order: as many as fit, or fewer.

    ``pool``: the documents of others. ``most``: how many of them a row has at most; None: as many as fit.
    """

    def __init__(
        self,
        readings: Sequence[Reading],
        pool: Sequence[Document],
        rows: Rows,
        most: int | None = None,
    ) -> None:
        self.readings, self.pool, self.rows, self.most = readings, pool, rows, most

    def at(self, step: int, rows: int, seed: int) -> Batch:
        made = []
        for row in range(rows):
            rng = np.random.default_rng((seed, step, row, 4))
            reading = self.readings[int(rng.integers(len(self.readings)))]
            made.append(among_others(reading, self.pool, self.rows.length, self.most, rng))
        return self.rows.batch(made)


def among_others(reading: Reading, pool: Sequence[Document], length: int, most: int | None, rng: Generator) -> Reading:
    """A reading with documents of others before, between and behind its own."""
    room = length + 1 - len(reading.ids) - size_of(reading.documents)
    budget = room if rng.random() < FULL else rng.random() * room
    documents = list(reading.documents)
    for count, other in enumerate(_others(documents, pool, rng)):
        budget -= size_of([other])
        if budget < 0 or count == most:
            break
        documents.append(other)
    return reading._replace(documents=tuple(documents[place] for place in rng.permutation(len(documents))))


def _others(own: Sequence[Document], pool: Sequence[Document], rng: Generator) -> Iterator[Document]:
    known = set(own)
    return (pool[place] for place in rng.permutation(len(pool)) if pool[place] not in known)
