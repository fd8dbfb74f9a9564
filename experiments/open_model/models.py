"""The model that is converted, what it is trained on, and the training of one conversion."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from contentrope.corpora.long_context import long_context
from contentrope.hf.finetune import CausalLM, units_named
from contentrope.hf.plain import config_of, load_model
from contentrope.training import Batches, MetricsLog, Mixed, RetrievalRows, StepReport, Windows, stepper_for, train
from contentrope.training.seeds import seeded
from experiments.conversions import Addresses, is_trained, parse_conversion
from experiments.converted import rescaled, with_addresses
from experiments.models import folder_of, size_of, training_facts
from experiments.open_model.config import OpenModelConfig
from experiments.open_model.weights import weights_folder

SAVE_EVERY = 100
"""Steps; a run may be cut off after minutes."""


@dataclass(frozen=True)
class Books:
    """Tokens of the books: those to train on in one row, the others by name."""

    training: Int[Tensor, "tokens"]
    held_out: Mapping[str, Int[Tensor, "_"]]

    @property
    def held_out_row(self) -> Int[Tensor, "tokens"]:
        return torch.cat(list(self.held_out.values()))


def model_place(config: OpenModelConfig) -> str:
    return str(weights_folder()) if config.model is None else config.model


def read_books(config: OpenModelConfig, tokenizer: Any) -> Books:
    texts = long_context()
    training, held_out = texts.books("train"), texts.books("validation")
    row = "\n\n".join(training.values())
    parts = list(training.values()) if config.characters is None else [row[: config.characters]]
    found = [torch.tensor(ids, dtype=torch.int32) for ids in _ids(tokenizer, [*parts, *held_out.values()])]
    return Books(torch.cat(found[: len(parts)]), dict(zip(held_out, found[len(parts) :], strict=True)))


def _ids(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    found = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]  # in as many threads as there are
    return [list(ids) for ids in found]


def converted(
    config: OpenModelConfig, variant: str, tokenizer: Any, text: Int[Tensor, "tokens"], device: str
) -> CausalLM:
    """The model as ``variant`` begins its training."""
    options, place = parse_conversion(variant), model_place(config)
    settings = config_of(place)
    model = load_model(place, rope=rescaled(variant, settings, settings.max_position_embeddings), device=device)
    if not isinstance(options, Addresses):
        return CausalLM(model)
    units = units_named(options.units or config.units)
    return with_addresses(model, tokenizer, options, text, units=units, max_length=config.longest_unit)


def batches(config: OpenModelConfig, tokenizer: Any, books: Books, device: str) -> Batches:
    """Stretches of the books, in some rows with something hidden that is asked for at the end."""
    rows = Windows(books.training, config.length, device)
    if not config.retrieval:
        return rows
    return Mixed(rows, RetrievalRows(books.training.long(), config.length, tokenizer, device=device), config.retrieval)


def trained(
    config: OpenModelConfig,
    variant: str,
    seed: int,
    tokenizer: Any,
    books: Books,
    out: Path,
    device: str,
    hear: Callable[[StepReport], None],
) -> tuple[Any, dict[str, Any]]:
    """The Hugging Face model after its training, and what that took; one trained before comes from its checkpoint."""
    with seeded(seed):  # LoRA begins at random
        fresh = converted(config, variant, tokenizer, books.training, device)
    facts: dict[str, Any] = {"parameters": size_of(fresh)}
    if not is_trained(variant):
        return _merged(fresh.model), facts
    folder = folder_of(out, variant, seed)
    stepper = stepper_for(fresh, replace(config.training, seed=seed))
    settings = {"length": config.length, "retrieval": config.retrieval, "units": config.units, "variant": variant}
    last = train(
        stepper,
        batches(config, tokenizer, books, device),
        checkpoint=folder / "checkpoint",
        on_step=hear,
        save_every=SAVE_EVERY,
        settings={**settings, "characters": config.characters, "longest_unit": config.longest_unit},
        metrics=MetricsLog(folder),
    )
    facts |= training_facts(last, stepper)
    facts["trained_parameters"] = sum(p.numel() for p in fresh.parameters() if p.requires_grad)
    facts["trained_tokens"] = config.training.steps * config.training.batch_size * config.length
    return _merged(fresh.model), facts


def _merged(model: Any) -> Any:
    """Without LoRA's second product, which would be computed at every token read."""
    return model.merge_and_unload() if hasattr(model, "merge_and_unload") else model
