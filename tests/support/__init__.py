"""What several tests share: random models with weights that matter, random units, and error budgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import contentrope as cr
from contentrope import schemes

VOCABULARY = 11
TERMINATOR = 0
WINDOWED = "content, window"
WINDOW = {"window": 6, "competition": 0.8}
"""Its options. Texts of the tests are some twenty tokens long: several of their units leave so short a window."""
VARIANTS = (*schemes.names(), WINDOWED)
"""What is tested of every kind of model: each scheme, and options that change what is cached."""
READ_UNITS = (*schemes.names(reads_units=True), WINDOWED)
KNOW_MEMORY = (*schemes.names(knows_memory_units=True), WINDOWED)
DRAW_AT_RANDOM = schemes.names(draws_at_random=True)
LEARNED = {"competition": 1.0, "learn_competition": True, "sharpness": 0.3, "learn_sharpness": True}
"""All that an addressed scheme can learn beside its addresses."""


def lively_model(
    scheme: str, *, seed: int = 0, dtype: torch.dtype = torch.float64, backend: str = "auto", **settings: Any
) -> cr.Transformer:
    """A small model whose every weight matters: fresh ones have zero addresses and near-uniform attention.

    ``scheme`` may be one of :data:`VARIANTS`.
    """
    torch.manual_seed(seed)
    defaults: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "dim": 24,
        "layers": 3,
        "heads": 2,
        "terminators": (TERMINATOR,),
        "max_unit_length": 7,
    }
    settings = {**defaults, **settings}
    if scheme == WINDOWED:
        scheme, settings["options"] = "content", {**WINDOW, **settings.get("options", {})}
    if scheme not in KNOW_MEMORY:
        backend = "auto"  # the others refuse to be asked
    model = cr.Transformer(cr.ModelConfig(scheme=scheme, **settings), backend=backend).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2 and "competition" not in name:
                parameter.normal_(std=1.2 / parameter.shape[-1] ** 0.5)
            elif "bias" in name:
                parameter.normal_(std=0.1)
        model.embedding.weight.normal_()
    return model.to(dtype).eval()


def random_ids(batch: int, seq: int, *, seed: int = 0, end_rate: float = 0.25) -> Tensor:
    """Ids in which about every fourth token ends its unit."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, VOCABULARY, (batch, seq), generator=generator)
    ends = torch.rand(batch, seq, generator=generator) < end_rate
    return torch.where(ends, TERMINATOR, ids)


def in_chunks(model: cr.Transformer, ids: Tensor, sizes: Sequence[int], **masks: Tensor) -> Tensor:
    """Logits of ids read chunk by chunk through a cache; the sizes are repeated until all is read."""
    cache = model.new_cache(len(ids), max_tokens=ids.shape[1])
    parts, begin = [], 0
    while begin < ids.shape[1]:
        for size in sizes:
            span = slice(begin, min(begin + size, ids.shape[1]))
            if span.start < ids.shape[1]:
                chunk_masks = {name: mask[:, span] for name, mask in masks.items()}
                parts.append(model(ids[:, span], cache=cache, **chunk_masks))
            begin += size
    return torch.cat(parts, dim=1)
