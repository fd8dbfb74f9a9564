"""Answers behind passages: as memory units from a store, or as one text; and whether their order matters."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contentrope.corpora import natural_questions as nq
from contentrope.evaluation.overlap import overlap
from contentrope.evaluation.perplexity import evaluating
from contentrope.hf.addresses import NAME
from contentrope.hf.chat import prompt_ids
from contentrope.hf.documents import document_of
from contentrope.store import UnitStore
from contentrope.units import Segmenter
from experiments.reader.models import Asked


class Answer(NamedTuple):
    text: str
    first: Tensor
    """The logits of its first token."""


class Answerer:
    """A model that answers questions behind passages. ``folder``: of a store, where passages are memory units; None:
    they are read as one text."""

    def __init__(self, model: Any, tokenizer: Any, segmenter: Segmenter, new_tokens: int, folder: Path | None) -> None:
        self.model, self.tokenizer, self.segmenter, self.new_tokens = model.eval(), tokenizer, segmenter, new_tokens
        self.store = None if folder is None else UnitStore(folder, model, tokenizer)
        ends = model.generation_config.eos_token_id
        self.ends = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])}

    def answers(self, asked: Sequence[Asked], count: int, depth: float) -> dict[str, float]:
        """Exact match and F1 behind so many passages, of which the one that answers stands at a depth."""
        storing, scores, seconds = time.perf_counter(), [], []
        if self.store is not None:  # every passage is read once, for all questions
            self.store.add({text: None for one in asked for text in one.documents(count, depth)})
        stored = time.perf_counter() - storing
        for one in asked:
            source = self._source(one.documents(count, depth))
            began = time.perf_counter()
            said = self._written(self._prompt(one), *self._read(source))
            seconds.append(time.perf_counter() - began)
            scores.append(overlap(said.text, one.question.answers))
        exact, f1 = (fmean(values) for values in zip(*scores, strict=True))
        found = {"exact": exact, "f1": f1, "seconds": fmean(seconds)}
        return found | ({} if self.store is None else {"storing_seconds": stored})

    def orders(self, asked: Sequence[Asked], count: int) -> dict[str, float]:
        """How many answers are the same behind two random orders of the passages, which are read in those orders by one
        call, without a store; and the largest difference in the logits of an answer's first token."""
        same, apart = [], [0.0]
        for number, one in enumerate(asked):
            draw, documents = random.Random(f"orders/{number}"), one.documents(count, 0.0)
            one_way, other_way = (
                self._written(self._prompt(one), *self._read_at_once(draw.sample(documents, count))) for _ in range(2)
            )
            same.append(one_way.text == other_way.text)
            apart.append(float((one_way.first - other_way.first).abs().max()))
        return {"same": fmean(same), "difference": max(apart)}

    def answer(self, one: Asked, documents: Sequence[str]) -> Answer:
        return self._written(self._prompt(one), *self._read(self._source(documents)))

    def _source(self, documents: Sequence[str]) -> Sequence[str]:
        """The keys of stored documents, or their texts."""
        return documents if self.store is None else self.store.add(documents)

    def _read(self, source: Sequence[str]) -> tuple[Any, list[int]]:
        """A cache of documents, and the tokens of those that are still to be read."""
        return self._read_at_once(source) if self.store is None else (self.store.cache(source), [])

    def _prompt(self, one: Asked) -> list[int]:
        return prompt_ids(nq.question(one.question), self.tokenizer)

    @torch.no_grad()
    def _read_at_once(self, documents: Sequence[str]) -> tuple[Any, list[int]]:
        """A cache of documents that were read as memory units in one call; or an empty one, and their tokens."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self.model.config.get_text_config())
        units = [unit for text in documents for unit in document_of(text, self.tokenizer, self.segmenter)]
        ids = [number for unit in units for number in unit]
        if self.store is None:
            return cache, ids
        cache.activate_past_recording()
        ends = torch.zeros(1, len(ids), dtype=torch.bool)
        ends[0, torch.tensor([len(unit) for unit in units]).cumsum(0) - 1] = True
        marks = {"unit_ends": ends, "unit_memory": torch.ones_like(ends)}
        on_device = {name: x.to(self.model.device) for name, x in marks.items()}
        with evaluating(self.model):
            self.model(self._tensor(ids), past_key_values=cache, use_cache=True, logits_to_keep=1, **on_device)
        return cache, []

    @torch.no_grad()
    def _written(self, prompt: list[int], cache: Any, before: Sequence[int] = ()) -> Answer:
        """The likeliest tokens, up to the end of an answer or its first line."""
        new: list[int] = []
        ids, first = self._tensor([*before, *prompt]), None
        while len(new) < self.new_tokens:
            logits = self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0, -1].float()
            first = logits.cpu() if first is None else first
            token = int(logits.argmax())
            if token in self.ends:
                break
            new.append(token)
            ids = self._tensor([token])
        text = str(self.tokenizer.decode(new, skip_special_tokens=True)).strip()
        assert first is not None
        return Answer(text.split("\n")[0], first)

    def _tensor(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor([list(ids)], device=self.model.device)


def as_measured(model: Any, precision: str, device: str) -> Any:
    """Weights in bfloat16 where a GPU was trained in it; addresses and frequencies stay as precise as they are."""
    if precision == "bf16" and device.startswith("cuda"):
        own = {id(weight) for weight in getattr(model, NAME, torch.nn.Module()).parameters()}
        for weight in model.parameters():
            if id(weight) not in own:
                weight.data = weight.data.bfloat16()
    return model
