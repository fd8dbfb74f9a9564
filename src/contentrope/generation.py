"""Sampling from a model, one token at a time, with its cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from contentrope.errors import InputError
from contentrope.model import Transformer


class Generated(NamedTuple):
    """Prompts and what follows them. Columns after a row's stop hold ``ids`` 0 and ``valid`` False."""

    ids: Int[Tensor, "batch total"]
    valid: Bool[Tensor, "batch total"]


def generate(
    model: Transformer,
    ids: Int[Tensor, "batch seq"],
    max_new_tokens: int,
    *,
    valid: Bool[Tensor, "batch seq"] | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop_at_unit_end: bool = False,
    generator: torch.Generator | None = None,
) -> Generated:
    """Continue prompts. ``temperature=0`` is greedy; prompts of unequal length are padded on the left (``valid``).
    With ``stop_at_unit_end`` a row stops at its first terminator.

    >>> from contentrope import ModelConfig
    >>> model = Transformer(ModelConfig(vocab_size=9, dim=16, layers=1, heads=2, terminators=(0,)))
    >>> generate(model, torch.tensor([[1, 2, 3]]), 4, temperature=0).ids.shape
    torch.Size([1, 7])
    """
    stream = generate_stream(
        model,
        ids,
        max_new_tokens,
        valid=valid,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        stop_at_unit_end=stop_at_unit_end,
        generator=generator,
    )
    prompt = Generated(ids, torch.ones_like(ids, dtype=torch.bool) if valid is None else valid)
    columns = [prompt, *stream]
    return Generated(torch.cat([c.ids for c in columns], dim=1), torch.cat([c.valid for c in columns], dim=1))


def generate_stream(
    model: Transformer,
    ids: Int[Tensor, "batch seq"],
    max_new_tokens: int,
    *,
    valid: Bool[Tensor, "batch seq"] | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop_at_unit_end: bool = False,
    generator: torch.Generator | None = None,
) -> Iterator[Generated]:
    """The new columns of :func:`generate`, each as soon as it is drawn; the model stays in evaluation mode meanwhile.

    >>> from contentrope import ModelConfig
    >>> model = Transformer(ModelConfig(vocab_size=9, dim=16, layers=1, heads=2, terminators=(0,)))
    >>> [column.ids.shape for column in generate_stream(model, torch.tensor([[1, 2, 3]]), 2)]
    [torch.Size([1, 1]), torch.Size([1, 1])]
    """
    if ids.ndim != 2 or not ids.shape[1]:
        raise InputError(f"generation continues a prompt: ids must be (batch, at least 1), got {tuple(ids.shape)}")
    if valid is not None and not bool(valid[:, -1].all()):
        raise InputError("pad prompts on the left: the last column of valid must be True in every row")
    if not (max_new_tokens >= 0 and temperature >= 0):
        raise InputError(f"max_new_tokens {max_new_tokens} and temperature {temperature} must be 0 or more")
    if top_k is not None and not top_k >= 1:
        raise InputError(f"top_k must be at least 1, got {top_k}")
    if top_p is not None and not 0.0 < top_p <= 1.0:
        raise InputError(f"top_p must be in (0, 1], got {top_p}")
    draw = partial(_sample, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator)
    return _columns(model, ids, valid, max_new_tokens, draw, stop_at_unit_end)


@torch.no_grad()
def _columns(
    model: Transformer,
    ids: Tensor,
    valid: Tensor | None,
    count: int,
    draw: Callable[[Tensor], Tensor],
    stop_at_unit_end: bool,
) -> Iterator[Generated]:
    was_training = model.training
    model.eval()
    try:
        cache = model.new_cache(len(ids), max_tokens=ids.shape[1] + count)
        terminators = torch.tensor(model.config.terminators, dtype=torch.int64, device=ids.device)
        logits = model(ids, valid=valid, cache=cache)[:, -1]
        alive = torch.ones_like(ids[:, :1], dtype=torch.bool)
        for step in range(count):
            token = torch.where(alive, draw(logits), 0)
            yield Generated(token, alive)
            if stop_at_unit_end:
                stopped_before = ~alive
                alive = alive & ~torch.isin(token, terminators)
                if not bool(alive.any()):
                    break
            if step + 1 < count:
                padding = ~stopped_before if stop_at_unit_end and bool(stopped_before.any()) else None
                logits = model(token, valid=padding, cache=cache)[:, -1]
    finally:
        model.train(was_training)


def _sample(
    logits: Float[Tensor, "batch vocab"],
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    generator: torch.Generator | None,
) -> Int[Tensor, "batch 1"]:
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    weights = keep_likely((logits.double() / temperature).softmax(-1), top_k, top_p)
    return torch.multinomial(weights, 1, generator=generator)


def keep_likely(
    probability: Float[Tensor, "batch vocab"], top_k: int | None, top_p: float | None
) -> Float[Tensor, "batch vocab"]:
    """Zero all but the ``top_k`` likeliest tokens and the smallest set whose mass reaches ``top_p``.

    >>> keep_likely(torch.tensor([[0.5, 0.3, 0.2]]), top_k=None, top_p=0.6).tolist()
    [[0.5, 0.30000001192092896, 0.0]]
    """
    ordered, order = probability.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(ordered.shape[-1], device=ordered.device)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if top_k is not None:
        keep &= rank < top_k
        ordered = torch.where(keep, ordered, 0.0)
    if top_p is not None:
        mass_before = (ordered.cumsum(-1) - ordered) / ordered.sum(-1, keepdim=True)
        keep &= (mass_before < top_p) | (rank == 0)
    return torch.zeros_like(probability).scatter(-1, order, torch.where(keep, ordered, 0.0))
