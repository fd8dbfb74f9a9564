"""Losses of a Hugging Face model on long texts, without the logits of all their tokens at once.

At 131,072 tokens and 49,152 words those would be 26 GB. The decoder runs once; what follows it, the head with whatever
scales or caps its output, runs over a part of the positions at a time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

MOST_LOGITS = 2**25
"""At once: 128 MiB in float32."""


class Predictor(nn.Module):
    """A causal language model, wrapped by PEFT or not, as the evaluation calls it.

    ``progress`` is told how many tokens were read.
    """

    def __init__(self, model: Any, progress: Callable[[int], None] = lambda tokens: None) -> None:
        super().__init__()
        self.model = model
        self.progress = progress

    def forward(self, ids: Int[Tensor, "rows seq"]) -> Float[Tensor, "rows seq vocab"]:
        return self.model(input_ids=ids, use_cache=False).logits

    def token_losses(self, rows: Int[Tensor, "rows tokens"]) -> Float[Tensor, "rows tokens-1"]:
        """Minus the log probability of every token after its row's first."""
        losses = token_losses(self.model, rows)
        self.progress(losses.numel())
        return losses


def token_losses(model: Any, rows: Int[Tensor, "rows tokens"], **marks: Tensor) -> Float[Tensor, "rows tokens-1"]:
    """Minus the log probability of every token after its row's first, in float32 at least. ``marks``: unit ends and
    memory, as an attached model takes them."""
    ids, targets = rows[:, :-1], rows[:, 1:]
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    if "logits_to_keep" not in inspect.signature(causal.forward).parameters:
        return _losses(model(input_ids=ids, use_cache=False, **marks).logits, targets)
    hidden = causal.base_model(input_ids=ids, use_cache=False, **marks)
    at_once = max(1, MOST_LOGITS // (len(rows) * causal.config.get_text_config().vocab_size))
    parts = []
    with _decoder_gives(causal, hidden):
        for places in torch.arange(ids.shape[1], device=ids.device).split(at_once):
            logits = causal(input_ids=ids, use_cache=False, logits_to_keep=places).logits
            parts.append(_losses(logits, targets[:, places]))
    return torch.cat(parts, dim=1)


def _losses(
    logits: Float[Tensor, "rows places vocab"], targets: Int[Tensor, "rows places"]
) -> Float[Tensor, "rows places"]:
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)


class _Given(nn.Module):
    """Stands for a decoder whose output is known."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.output


@contextmanager
def _decoder_gives(causal: Any, output: Any) -> Iterator[None]:
    decoder = causal.base_model
    setattr(causal, causal.base_model_prefix, _Given(output))
    try:
        yield
    finally:
        setattr(causal, causal.base_model_prefix, decoder)
