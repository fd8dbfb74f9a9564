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
from contentrope.training import Batches, Mixed, RetrievalRows, StepReport, Windows
from contentrope.training.seeds import seeded
from experiments.conversions import Addresses, is_trained, parse_conversion
from experiments.converted import merged, rescaled, trained_conversion, with_addresses
from experiments.models import folder_of, size_of
from experiments.open_model.config import OpenModelConfig
from experiments.open_model.weights import weights_folder


@dataclass(frozen=True)
class Books:
    """Tokens of the books: those to train on in one row, the others by name."""

    training: Int[Tensor, "tokens"]
    held_out: Mapping[str, Int[Tensor, "_"]]

    @property
    def held_out_row(self) -> Int[Tensor, "tokens"]:
        return torch.cat(list(self.held_out.values()))


def model_place(model: str | None) -> str:
    """Folder or name of the model that is meant; None: SmolLM2."""
    return str(weights_folder()) if model is None else model


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
    options, place = parse_conversion(variant), model_place(config.model)
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
        return merged(fresh.model), facts
    settings = {"length": config.length, "retrieval": config.retrieval, "units": config.units, "variant": variant}
    settings |= {"characters": config.characters, "longest_unit": config.longest_unit}
    rows, training = batches(config, tokenizer, books, device), replace(config.training, seed=seed)
    model, more = trained_conversion(
        fresh, training, rows, config.length, folder_of(out, variant, seed), settings, hear
    )
    return model, facts | more
