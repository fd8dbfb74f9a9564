"""How well a model predicts a text when it may look back over a given length."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from contentrope.errors import InputError


def perplexity(
    model: nn.Module,
    data: Int[Tensor, "tokens"],
    length: int,
    *,
    max_tokens: int | None = None,
    batch_tokens: int = 16384,
) -> float:
    """Perplexity over every token of the non-overlapping windows of ``length`` that fit into ``data``.

    All positions of a window count, the first ones with little context too. What is left after the last whole
    window is not scored, nor are windows beyond ``max_tokens``.
    """
    return perplexity_of(token_losses(model, windows_of(data, length, max_tokens), batch_tokens))


def windows_of(
    data: Int[Tensor, "tokens"], length: int, max_tokens: int | None = None
) -> Int[Tensor, "windows {length}+1"]:
    """The non-overlapping windows of ``length`` inputs, each with one token more: the target of its last input.

    >>> windows_of(torch.arange(8), length=3).tolist()
    [[0, 1, 2, 3], [3, 4, 5, 6]]
    """
    if data.ndim != 1:
        raise InputError(f"data has shape {tuple(data.shape)}: pass the token ids of a text in one row")
    if length < 1:
        raise InputError(f"length must be at least 1, got {length}")
    scorable = len(data) - 1 if max_tokens is None else min(len(data) - 1, max_tokens)
    if scorable < length:
        raise InputError(
            f"no window of length {length} fits: the data has {len(data)} tokens, one of them only a target, "
            f"and max_tokens is {max_tokens}; give more text or a smaller length"
        )
    count = scorable // length
    return data[: count * length + 1].unfold(0, length + 1, length)


def token_losses(
    model: nn.Module, windows: Int[Tensor, "rows tokens"], batch_tokens: int = 16384
) -> Float[Tensor, "rows tokens-1"]:
    """Minus the log probability of every token after its row's first, on the CPU, in float32 at least.

    The model runs in evaluation mode on its own device, on about ``batch_tokens`` tokens at once. Its own
    ``token_losses``, if it has any, take the place of losses made from all logits.
    """
    device = next(model.parameters()).device
    rows_at_once = max(1, batch_tokens // (windows.shape[1] - 1))
    with evaluating(model), torch.no_grad():
        return torch.cat([_losses(model, rows.long().to(device)).cpu() for rows in windows.split(rows_at_once)])


def perplexity_of(losses: Float[Tensor, "*shape"]) -> float:
    """What a set of losses amounts to; inf where the number is too large, not an overflow.

    >>> round(perplexity_of(torch.tensor([2.0, 8.0]).log()), 4)
    4.0
    """
    return (losses.sum(dtype=torch.float64) / losses.numel()).exp().item()


def shown(perplexity: float | None) -> str:
    """In two decimals; None is what JSON has for infinity."""
    return "inf" if perplexity is None else f"{perplexity:.2f}"


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for the time of the block; every submodule gets its own mode back."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in training.items():
            module.training = mode


def _losses(model: nn.Module, rows: Int[Tensor, "rows tokens"]) -> Float[Tensor, "rows tokens-1"]:
    own: Any = getattr(model, "token_losses", None)
    if own is not None:  # which need not make the logits of all tokens at once
        return own(rows)
    logits = model(rows[:, :-1])
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="none").view(len(rows), -1)
