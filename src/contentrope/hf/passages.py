"""Rows that teach to read documents from nothing but a text: passages of it are the documents.

Half of the rows ask for facts that are hidden in passages. In the others the text behind one of the passages goes on
behind all of them: what it is about stands in that one.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.random import Generator
from torch import Tensor

from contentrope.errors import InputError
from contentrope.hf.chat import encoded
from contentrope.hf.documents import FULL, Document, Reading, Rows, size_of
from contentrope.training.batches import Batch, Windows
from contentrope.training.made_facts import Fact, made_facts
from contentrope.training.retrieval import (
    ANSWER_WEIGHT,
    MADE_WEIGHT,
    MOST_ASKED,
    MOST_SCATTERED,
    look_for_ends,
    moved_to_ends,
)
from contentrope.units.cutting import cut

ASKED = 0.5
"""Share of the rows that ask for facts."""
SHORTEST = 16
"""Tokens of a passage, before it is moved to the end of a sentence."""
CONTINUED = 0.25
"""Share of a row that the continuation of a passage takes."""
SAMPLED = 100
"""Facts that are looked at to learn how long they get."""


class PassageRows:
    """``data``: the text as ids of ``tokenizer``. A row depends on the seed, the step and its number alone."""

    weighted = True

    def __init__(self, data: Int[Tensor, "tokens"], tokenizer: Any, rows: Rows) -> None:
        self.data, self.tokenizer, self.rows = Windows(data, rows.length).data.cpu(), tokenizer, rows
        self._ends = look_for_ends(self.data, tokenizer)[1]
        self._has_template = _is_fit(tokenizer)
        rng = np.random.default_rng(0)
        samples = [next(made_facts(rng)) for _ in range(SAMPLED)]
        longest = max(len(self._ids("".join(fact.lines))) + len(self._asked([fact]).ids) for fact in samples)
        least = max(longest, int(CONTINUED * rows.length)) + 4 * SHORTEST
        if least > rows.length:
            raise InputError(
                f"length {rows.length} has no room for passages and questions on them, which take up to {least} "
                f"tokens; take {least} or more"
            )

    def at(self, step: int, rows: int, seed: int) -> Batch:
        made = [self._row(np.random.default_rng((seed, step, row, 5))) for row in range(rows)]
        return self.rows.batch(made, weighted=True)

    def _row(self, rng: Generator) -> Reading:
        draw = self._asking if rng.random() < ASKED else self._going_on
        while (found := draw(rng)) is None:  # what does not fit is drawn again
            pass
        return found

    def _going_on(self, rng: Generator) -> Reading | None:
        """One of the passages goes on behind all of them."""
        count = max(1, int(CONTINUED * self.rows.length))
        begin, end = self._span(rng, len(self.data) - count)
        behind = self.data[end : end + count]
        own = [self._cut(self.data[begin:end])]
        return self._among(own, Reading((), behind, torch.ones(count)), rng, not_from=(end, end + count))

    def _asking(self, rng: Generator) -> Reading | None:
        """Facts in passages, each in one, and questions on some of them."""
        facts = list(islice(made_facts(rng), int(rng.integers(1, MOST_SCATTERED + 1))))
        asked = rng.permutation(len(facts))[: int(rng.choice([1, 1, 2, MOST_ASKED]))]
        own = [self._cut(self._hidden(fact, rng)) for fact in facts]
        return self._among(own, self._asked([facts[place] for place in asked]), rng)

    def _among(
        self, own: list[Document], reader: Reading, rng: Generator, not_from: tuple[int, int] = (0, 0)
    ) -> Reading | None:
        """Before the reader, ``own`` documents among as many other passages as fit, or fewer; none shows the part of
        the text that is ``not_from`` documents."""
        documents, budget = list(own), self.rows.length + 1 - len(reader.ids) - size_of(own)
        if budget < 0:
            return None
        budget = int(budget if rng.random() < FULL else budget * rng.random())
        while budget > 0:
            begin, end = self._span(rng, len(self.data))
            budget -= end - begin
            if budget >= 0 and not (begin < not_from[1] and end > not_from[0]):
                documents.append(self._cut(self.data[begin:end]))
        return reader._replace(documents=tuple(documents[place] for place in rng.permutation(len(documents))))

    def _hidden(self, fact: Fact, rng: Generator) -> Tensor:
        """A passage with the lines of a fact at the end of a sentence in it."""
        begin, end = self._span(rng, len(self.data))
        (place,) = moved_to_ends(rng.integers(begin, end + 1, size=1), self._ends, begin, end)
        lines = self._ids("\n" + "".join(fact.lines))
        return torch.cat([self.data[begin:place], lines, self.data[place:end]])

    def _span(self, rng: Generator, last: int) -> tuple[int, int]:
        """Where a passage begins and ends, both at ends of sentences if there are any near."""
        longest = self.rows.segmenter.max_length
        size = int(rng.integers(min(SHORTEST, longest), longest + 1))
        begin = int(rng.integers(0, max(1, last - size)))
        (begin,) = moved_to_ends(np.array([begin]), self._ends, begin, min(begin + size // 2, last - 1))
        end = min(begin + size, last)
        (end,) = moved_to_ends(np.array([end]), self._ends, begin + 1, end)
        return begin, end

    def _cut(self, ids: Tensor) -> Document:
        return tuple(cut(tuple(ids.tolist()), self.rows.segmenter, "long"))

    def _asked(self, facts: list[Fact]) -> Reading:
        """One question by the chat template if there is a fit one, as not all can write several; else all of them, line
        by line."""
        if not self._has_template:
            return self._asked_plainly(facts)
        said = {"user": facts[0].question, "assistant": facts[0].answer}
        messages = [{"role": role, "content": text.strip()} for role, text in said.items()]
        ids, answers = encoded(messages, self.tokenizer, "a made question")
        return Reading((), ids, ANSWER_WEIGHT * answers.float())

    def _asked_plainly(self, facts: list[Fact]) -> Reading:
        ids: list[Tensor] = []
        weights: list[Tensor] = []
        for fact in facts:
            question, whole = self._ids(f"\n{fact.question}"), self._ids(f"\n{fact.question}{fact.answer}")
            # The last token of a question may grow together with the first of its answer.
            least = min(len(question), len(whole))
            alike = int((question[:least] == whole[:least]).long().cumprod(0).sum())
            ids.append(whole)
            weights.append(torch.where(torch.arange(len(whole)) < alike, MADE_WEIGHT, ANSWER_WEIGHT))
        return Reading((), torch.cat(ids), torch.cat(weights))

    def _ids(self, text: str) -> Tensor:
        return torch.tensor(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _is_fit(tokenizer: Any) -> bool:
    """Whether there is a chat template that writes a question as it was asked, with its answer behind it."""
    messages = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": "an answer"}]
    try:
        return bool(getattr(tokenizer, "chat_template", None)) and bool(encoded(messages, tokenizer, "").answers.any())
    except InputError:
        return False
