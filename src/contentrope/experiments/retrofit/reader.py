"""A Hugging Face model as the training engine and the evaluation know models: ids in, logits out.

Shapes: rows, seq (tokens), vocab.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from contentrope.training import Batch, Batches
from contentrope.units import Segmenter

NEW_LEARN_FASTER = 10.0
"""What a conversion adds starts at zero, and has to go far; what the model knew should not be shaken meanwhile."""


class Reader(nn.Module):
    """``model`` is a causal language model, wrapped (PEFT) or not. One with addresses comes with its segmenter."""

    def __init__(self, model: Any, segmenter: Segmenter | None = None, rotary: tuple[nn.Module, ...] = ()) -> None:
        super().__init__()
        self.model = model
        self.segmenter = segmenter
        self._moved: Tensor | None = None
        if segmenter is not None:
            # Rules keep tables by device; one that is first made inside a compiled update would have it compiled twice.
            token = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
            self._positions(token, gate=torch.zeros(1, device=model.device))
        for module in rotary:
            # Behind the adapter's own hook, which knows one gate for all calls.
            module.register_forward_pre_hook(self._place, with_kwargs=True)

    def forward(
        self, ids: Int[Tensor, "rows seq"], gate: Float[Tensor, "rows"] | None = None
    ) -> Float[Tensor, "rows seq vocab"]:
        """``gate``: how far positions are global (1) or local (0), instead of the model's own gate.

        A tensor, as a captured update must not know it by value.
        """
        self._moved = None if gate is None else self._positions(ids, gate)
        logits = self.model(input_ids=ids, use_cache=False).logits
        self._moved = None
        return logits

    def rate_factor(self, name: str) -> float:
        """How fast a parameter learns, as the training engine asks: addresses and LoRA are new, all else is not."""
        return NEW_LEARN_FASTER if "contentrope." in name or ".lora_" in name else 1.0

    def _positions(self, ids: Tensor, gate: Tensor) -> Float[Tensor, "rows seq"]:
        assert self.segmenter is not None, "only a model with units has positions to move"
        units, _ = self.segmenter.advance(self.segmenter.initial(len(ids), ids.device), ids)
        everywhere = torch.arange(ids.shape[1], device=ids.device)
        return units.local + gate[:, None] * (everywhere - units.local)

    def _place(self, rotary: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if self._moved is None:
            return args, kwargs
        if "position_ids" in kwargs:
            return args, {**kwargs, "position_ids": self._moved}
        hidden, _, *rest = args
        return (hidden, self._moved, *rest), kwargs


class Gated:
    """Batches with the gate of their step: it falls from 1 to 0 within the first ``fall`` steps."""

    def __init__(self, batches: Batches, fall: int) -> None:
        self.batches, self.fall = batches, fall

    def at(self, step: int, rows: int, seed: int) -> Batch:
        batch = self.batches.at(step, rows, seed)
        gate = torch.full((rows,), gate_at(step, self.fall), device=batch.targets.device)
        return Batch({**batch.inputs, "gate": gate}, batch.targets)


def gate_at(step: int, fall: int) -> float:
    """
    >>> [gate_at(step, fall=4) for step in (0, 1, 4, 9)]
    [1.0, 0.75, 0.0, 0.0]
    """
    return max(0.0, 1.0 - step / fall)


def add_dropout(model: Any, rate: float) -> None:
    """Dropout on what attention and feed-forward of every layer add; Llama has none of its own there."""
    if not rate:
        return
    for layer in model.base_model.layers:
        layer.self_attn.register_forward_hook(
            lambda module, args, out: (F.dropout(out[0], rate, module.training), *out[1:])
        )
        layer.mlp.register_forward_hook(lambda module, args, out: F.dropout(out, rate, module.training))
