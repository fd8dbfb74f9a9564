"""The model that is converted, the rows it is trained on, and the questions it is asked, which are none of those."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from contentrope.corpora import natural_questions as nq
from contentrope.corpora.long_context import Question, long_context
from contentrope.errors import InputError
from contentrope.hf.chat import prompt_ids
from contentrope.hf.documents import Evened, ReadingRows, Rows, Unmarked, document_of, segmenter_of
from contentrope.hf.finetune import CausalLM, units_named
from contentrope.hf.passages import PassageRows
from contentrope.hf.plain import config_of, load_model
from contentrope.hf.readings import NAMED, Readings, read_readings
from contentrope.training import Batches, Mixed, StepReport
from contentrope.training.seeds import seeded
from contentrope.units import Segmenter
from experiments.conversions import Addresses, is_trained, parse_conversion
from experiments.converted import merged, rescaled, trained_conversion, with_addresses
from experiments.models import folder_of, size_of
from experiments.open_model.models import model_place
from experiments.random_addresses import RandomByContent, draw_at_random
from experiments.reader.config import ReaderConfig, reads_units

ORDER_OF_QUESTIONS = 0
"""Seed of the order in which they are taken."""


class Asked(NamedTuple):
    """A question, its passage, and as many others as may stand beside it, always in the same order."""

    question: Question
    gold: str
    others: list[str]

    def documents(self, count: int, depth: float) -> list[str]:
        """So many passages; that of the question stands at a depth from 0, the first, to 1, the last."""
        place = round(depth * (count - 1))
        return [*self.others[:place], self.gold, *self.others[place : count - 1]]


class Material:
    """What is trained on and what is asked."""

    def __init__(self, config: ReaderConfig, tokenizer: Any) -> None:
        self.config, self.tokenizer = config, tokenizer

    @cached_property
    def segmenter(self) -> Segmenter:
        settings = config_of(model_place(self.config.model))
        return segmenter_of(settings, self.tokenizer, self.config.units, None, self.config.longest_unit)

    @cached_property
    def scored(self) -> list[Question]:
        return nq.split(long_context().natural_questions()).scored

    @cached_property
    def readings(self) -> Readings:
        found = read_readings(NAMED, self.tokenizer, self.config.length, self.segmenter)
        refuse_if_shared(found, self.scored, self.tokenizer, self.segmenter)
        return found

    @cached_property
    def books(self) -> Int[Tensor, "tokens"]:
        row = "\n\n".join(long_context().books("train").values())[: self.config.characters]
        return torch.tensor(self.tokenizer(row, add_special_tokens=False, verbose=False)["input_ids"])

    def rows(self, device: str) -> Batches:
        """Questions among documents, and rows made of books: the same for all variants."""
        rows = Rows(self.segmenter, self.config.length, device)
        asked: Batches = ReadingRows(self.readings.training, self.readings.pool, rows)
        if not self.config.text_share:
            return asked
        return Evened(Mixed(asked, PassageRows(self.books, self.tokenizer, rows), self.config.text_share))

    def asked(self, count: int) -> list[Asked]:
        """The first questions that are scored, each with other such passages."""
        most = max(*self.config.asking.passages, *self.config.asking.order_passages)
        if len(self.scored) < max(count, most):
            raise InputError(f"{len(self.scored)} questions are scored: ask at most so many, behind so many passages")
        order = random.Random(ORDER_OF_QUESTIONS).sample(self.scored, len(self.scored))
        return [_asked(one, self.scored, most, number) for number, one in enumerate(order[:count])]


def _asked(one: Question, scored: Sequence[Question], most: int, number: int) -> Asked:
    gold = nq.document(one)
    others = list(dict.fromkeys(nq.document(other) for other in scored if nq.document(other) != gold))
    drawn = random.Random(f"others/{number}").sample(others, min(most - 1, len(others)))
    if len(drawn) < most - 1:
        raise InputError(f"there are {len(others)} other passages, and {most - 1} are asked for; take fewer passages")
    return Asked(one, gold, drawn)


def refuse_if_shared(readings: Readings, scored: Sequence[Question], tokenizer: Any, segmenter: Segmenter) -> None:
    """An error if a question that is scored, or its passage, is among those that are trained on."""
    read = [*readings.training, *readings.held_out]
    documents = {document for reading in read for document in reading.documents}
    prompts = {tuple(reading.ids[: int(reading.weights.argmax())].tolist()) for reading in read}
    for one in scored:
        asked, document = prompt_ids(nq.question(one), tokenizer), document_of(nq.document(one), tokenizer, segmenter)
        if tuple(asked) in prompts or document in documents:
            raise InputError(f"the question {one.question!r} is scored, and it or its passage is trained on")


# --- models --------------------------------------------------------------------------------------------------------


def converted(config: ReaderConfig, variant: str, tokenizer: Any, books: Any, device: str) -> CausalLM:
    """The model as ``variant`` begins its training."""
    options, place = parse_conversion(variant), model_place(config.model)
    settings = config_of(place)
    model = load_model(place, rope=rescaled(variant, settings, settings.max_position_embeddings), device=device)
    if not isinstance(options, Addresses):
        return CausalLM(model)
    units = units_named(config.units)
    found = with_addresses(model, tokenizer, options, books, units=units, max_length=config.longest_unit)
    if options.address == "random":
        draw_at_random(model, RandomByContent)
        model.contentrope.by_turning.requires_grad_(False)
    return found


def trained(
    material: Material, variant: str, seed: int, out: Path, device: str, hear: Callable[[StepReport], None]
) -> tuple[Any, dict[str, Any]]:
    """The Hugging Face model after its training, and what that took."""
    config = material.config
    with seeded(seed):  # LoRA begins at random
        fresh = converted(config, variant, material.tokenizer, material.books, device)
    facts: dict[str, Any] = {"parameters": size_of(fresh)}
    if not is_trained(variant):
        return merged(fresh.model), facts
    rows = material.rows(device)
    settings = {"length": config.length, "text_share": config.text_share, "units": config.units, "variant": variant}
    settings |= {"characters": config.characters, "longest_unit": config.longest_unit}
    model, more = trained_conversion(
        fresh,
        replace(config.training, seed=seed),
        rows if reads_units(variant) else Unmarked(rows),
        config.length,
        folder_of(out, variant, seed),
        settings,
        hear,
    )
    return model, facts | more
