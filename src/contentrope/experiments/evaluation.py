"""How well a model predicts a text when it may look back over a given length."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from jaxtyping import Int
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
    windows = _window_count(len(data), length, max_tokens)
    at_once = max(1, batch_tokens // length)
    device = next(model.parameters()).device
    total = 0.0
    with _evaluating(model), torch.no_grad():
        for first in range(0, windows, at_once):
            count = min(at_once, windows - first)
            piece = data[first * length : (first + count) * length + 1].long().to(device)
            logits = model(piece[:-1].view(count, length))
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, 1)
            losses = F.cross_entropy(logits, piece[1:], reduction="none")
            total += losses.sum(dtype=torch.float64).item()
    return torch.tensor(total / (windows * length), dtype=torch.float64).exp().item()  # inf, not an overflow


def _window_count(tokens: int, length: int, max_tokens: int | None) -> int:
    if length < 1:
        raise InputError(f"length must be at least 1, got {length}")
    scorable = tokens - 1 if max_tokens is None else min(tokens - 1, max_tokens)
    if scorable < length:
        raise InputError(
            f"no window of length {length} fits: the data has {tokens} tokens, one of them only a target, "
            f"and max_tokens is {max_tokens}; give more text or a smaller length"
        )
    return scorable // length


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for the time of the block; every submodule gets its own mode back."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in training.items():
            module.training = mode
