"""Rows that teach a model to look far back: facts hidden in a text, and asked for at its end.

Ordinary text seldom needs what was said thousands of tokens ago, so little of it teaches to read there.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from contentrope.errors import InputError
from contentrope.training.batches import Batch, Batches, Windows
from contentrope.training.made_facts import MOST_VALUES, Fact, made_facts

ANSWER_WEIGHT = 10.0
"""Of an answer's tokens in the loss: a row of thousands of tokens has only a few of them."""
MADE_WEIGHT = 0.1
"""Of facts where they are stated, and of questions: what is drawn at random cannot be predicted."""
MOST_SCATTERED = 16
MOST_ASKED = 4
LARGEST_LIST = 0.9
"""The largest share of a row that a list of facts takes."""
SAMPLED = 300
"""Facts that are looked at to learn how long they get."""


class RetrievalRows:
    """Windows of a text in which facts are hidden: one, several, or a list of many. The last tokens ask for some.

    ``data``: the text as ids of ``tokenizer``, which also gives those of the facts. A row depends on the seed, the
    step and its number alone.

    >>> class Letters:
    ...     def __call__(self, texts, **options): return {"input_ids": [[ord(c) for c in text] for text in texts]}
    ...     def decode(self, ids): return "".join(map(chr, ids))
    >>> text = "And so the day went by, as days do.\\n" * 50
    >>> rows = RetrievalRows(torch.tensor([ord(c) for c in text]), 1000, Letters())
    >>> batch = rows.at(step=0, rows=1, seed=4)
    >>> batch.targets.shape, bool(batch.weights[0, -1] == ANSWER_WEIGHT)
    (torch.Size([1, 1000]), True)
    """

    weighted = True

    def __init__(
        self,
        data: Int[Tensor, "tokens"],
        length: int,
        tokenizer: Any,
        *,
        answer_weight: float = ANSWER_WEIGHT,
        device: torch.device | str = "cpu",
    ) -> None:
        if not 0.0 < answer_weight < math.inf:
            raise InputError(f"answer_weight must be positive and finite, got {answer_weight}")
        self.data, self.length = Windows(data, length).data, length
        self.tokenizer, self.answer_weight, self.device = tokenizer, answer_weight, device
        self._newline = self._ids(["\n"])[0]
        rng = np.random.default_rng(0)
        samples = [next(made_facts(rng)) for _ in range(SAMPLED)]
        longest = max(len(self._stated([fact])) + len(self._asked([fact]).ids) for fact in samples)
        longest += MOST_VALUES * len(self._newline)
        if longest > length + 1:
            raise InputError(
                f"length {length} has no room for facts and their questions, which take up to {longest} tokens; take "
                f"{longest} or more, or train without retrieval"
            )
        self._begins_line, self._ends = look_for_ends(self.data, tokenizer)

    def at(self, step: int, rows: int, seed: int) -> Batch:
        made = [self._row(np.random.default_rng((seed, step, row, 2))) for row in range(rows)]
        ids = torch.stack([row.ids for row in made]).to(self.device)
        weights = torch.stack([row.weights for row in made]).to(self.device)
        return Batch({"ids": ids[:, :-1]}, ids[:, 1:], weights[:, 1:])

    def _row(self, rng: Generator) -> Piece:
        room, spare = -1, 0
        while room < spare:
            hidden, question = self._drawn(rng)
            room = self.length + 1 - sum(map(len, hidden)) - len(question.ids)
            spare = len(hidden) * len(self._newline)
        end = room + int(rng.integers(len(self.data) - room + 1))
        places = self._places(rng, end - room + spare, end, len(hidden))
        lines = [
            x if self._begins_line[p] else torch.cat([self._newline, x]) for p, x in zip(places, hidden, strict=True)
        ]
        # The text before the first place gives way to the newlines.
        before = end - (self.length + 1 - sum(map(len, lines)) - len(question.ids))
        pieces = []
        for place, line in zip(places, lines, strict=True):
            pieces += [_weighing(1.0, self.data[before:place]), _weighing(MADE_WEIGHT, line)]
            before = place
        return _joined([*pieces, _weighing(1.0, self.data[before:end]), question])

    def _drawn(self, rng: Generator) -> tuple[list[Tensor], Piece]:
        """What is hidden: single lines, or a list of them in one piece; and the questions."""
        made, kind = made_facts(rng), rng.choice(["one", "several", "list"])
        facts = [next(made)]
        if kind == "several":
            facts += islice(made, int(rng.integers(1, MOST_SCATTERED)))
        elif kind == "list":
            wanted = rng.uniform(0.0, LARGEST_LIST) * self.length
            facts += islice(made, int(wanted / len(self._stated(facts))))
        asked = rng.permutation(len(facts))[: int(rng.choice([1, 1, 2, MOST_ASKED]))]
        hidden = [self._stated(facts)] if kind == "list" else self._lines(facts)
        return hidden, self._asked([facts[index] for index in asked])

    def _lines(self, facts: list[Fact]) -> list[Tensor]:
        """Where facts have several values: a first line for each fact, then a second one for each."""
        return self._ids([line for lines in zip(*(fact.lines for fact in facts), strict=True) for line in lines])

    def _stated(self, facts: list[Fact]) -> Tensor:
        return torch.cat(self._lines(facts))

    def _asked(self, facts: list[Fact]) -> Piece:
        """Questions with their answers, one after the other."""
        questions = self._ids([f"\n{fact.question}" for fact in facts])
        answered = self._ids([f"\n{fact.question}{fact.answer}" for fact in facts])
        pieces = []
        for question, whole in zip(questions, answered, strict=True):
            # The last token of a question may grow together with the first of its answer.
            least = min(len(question), len(whole))
            alike = int((question[:least] == whole[:least]).long().cumprod(0).sum())
            pieces += [_weighing(MADE_WEIGHT, whole[:alike]), _weighing(self.answer_weight, whole[alike:])]
        return _joined(pieces)

    def _places(self, rng: Generator, first: int, last: int, count: int) -> list[int]:
        """Places in a part of the text, in order: anywhere, but moved to the end of a sentence if it has any."""
        return moved_to_ends(np.sort(rng.integers(first, last + 1, size=count)), self._ends, first, last)

    def _ids(self, texts: list[str]) -> list[Tensor]:
        found = self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        return [torch.tensor(ids, dtype=torch.int64) for ids in found]


def look_for_ends(data: Int[Tensor, "tokens"], tokenizer: Any) -> tuple[Tensor, NDArray[np.int64]]:
    """Whether a line begins at each place of a text, and the places where a line or sentence has ended."""
    used, which = torch.unique(data, return_inverse=True)
    texts = [tokenizer.decode([token]) for token in used.tolist()]
    ends_line, begins_with_end, ends_sentence = (
        torch.tensor([bool(holds(text)) for text in texts])[which]
        for holds in (
            lambda text: text.endswith("\n"),
            lambda text: text.startswith("\n"),
            lambda text: text.rstrip().endswith((".", "!", "?")),
        )
    )
    ends = ends_line | ends_sentence
    ends[:-1] &= ends_line[:-1] | ~begins_with_end[1:]
    return torch.cat([torch.tensor([True]), ends_line]), ends.nonzero()[:, 0].numpy() + 1


def moved_to_ends(drawn: NDArray[np.int64], ends: NDArray[np.int64], first: int, last: int) -> list[int]:
    """Places from ``first`` to ``last``, each moved to the next end of a sentence there, if there is any.

    >>> moved_to_ends(np.array([3, 8]), np.array([1, 5, 7, 30]), first=2, last=20)
    [5, 7]
    """
    among = ends[slice(*np.searchsorted(ends, [first, last + 1]))]
    if len(among):
        drawn = among[np.searchsorted(among, drawn).clip(max=len(among) - 1)]
    return [int(place) for place in drawn]


class Mixed:
    """Batches of which a ``share`` of the rows comes from ``other``.

    Where the share is no whole number of rows, batches take turns, so that it is met over the steps.

    >>> windows = Windows(torch.arange(9), 4), Windows(torch.arange(100, 109), 4)
    >>> mixed = Mixed(*windows, share=0.5)
    >>> [int((mixed.at(step, rows=3, seed=0).targets > 99).all(1).sum()) for step in range(4)]
    [1, 2, 1, 2]
    """

    def __init__(self, batches: Batches, other: Batches, share: float) -> None:
        if not 0.0 <= share <= 1.0:
            raise InputError(f"share must be from 0 to 1, got {share}")
        self.batches, self.other, self.share = batches, other, share
        self.weighted = any(getattr(source, "weighted", False) for source in (batches, other))

    def at(self, step: int, rows: int, seed: int) -> Batch:
        others = math.floor((step + 1) * self.share * rows) - math.floor(step * self.share * rows)
        shares = [(self.batches, rows - others), (self.other, others)]
        batch = Batch.joined([source.at(step, count, seed) for source, count in shares if count])
        if self.weighted and batch.weights is None:  # a captured update wants the same tensors in every step
            batch = replace(batch, weights=torch.ones_like(batch.targets, dtype=torch.float32))
        return batch


class Piece(NamedTuple):
    """Tokens, and how much each counts in the loss."""

    ids: Int[Tensor, "tokens"]
    weights: Float[Tensor, "tokens"]


def _weighing(weight: float, ids: Tensor) -> Piece:
    return Piece(ids, torch.full(ids.shape, weight))


def _joined(pieces: list[Piece]) -> Piece:
    return Piece(torch.cat([piece.ids for piece in pieces]), torch.cat([piece.weights for piece in pieces]))
