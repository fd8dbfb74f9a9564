"""Attention weights of a model: what every token attends to, for any scheme and any backend.

What attention returns is linear in the values. Given values that are 1 at one position and 0 at all others, it
returns the weight of that position: no second formula of attention is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from contentrope.context import Context, Projected
from contentrope.model import Transformer

Weights = Float[Tensor, "batch heads seq seq"]


def attention_weights(
    model: Transformer,
    ids: Int[Tensor, "batch seq"],
    *,
    valid: Bool[Tensor, "batch seq"] | None = None,
    ends: Bool[Tensor, "batch seq"] | None = None,
    memory: Bool[Tensor, "batch seq"] | None = None,
) -> list[Weights]:
    """How much each token (third dimension) attends to each (fourth), layer by layer; a token's weights sum to one.

    For short texts: it holds every pair. The model computes as it does in evaluation.

    >>> from contentrope.config import ModelConfig
    >>> model = Transformer(ModelConfig(vocab_size=9, dim=8, layers=2, heads=2, terminators=(0,)))
    >>> first, second = attention_weights(model, torch.tensor([[3, 0, 5]]))
    >>> first.shape, first[0, 0, 0].tolist()
    (torch.Size([1, 2, 3, 3]), [1.0, 0.0, 0.0])
    """
    found: dict[int, Weights] = {}
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), _watched(model, found):
            model(ids, valid=valid, ends=ends, memory=memory)
    finally:
        model.train(training)
    return [found[layer] for layer in sorted(found)]


class _Watched:
    """A context that also reads the weights of every layer off its own attention."""

    def __init__(self, context: Context, found: dict[int, Weights]) -> None:
        self.context, self.found = context, found

    def attend(self, layer: int, hidden: Tensor, projected: Projected) -> Tensor:
        value = projected.value
        positions, width = value.shape[1], value.shape[-1]
        at_position = torch.eye(positions, dtype=value.dtype, device=value.device)
        read = []
        for begin in range(0, positions, width):
            some = nn.functional.pad(at_position[:, begin : begin + width], (0, max(0, begin + width - positions)))
            seen = some[None, :, None].expand_as(value).contiguous()
            read.append(self.context.attend(layer, hidden, Projected(projected.query, projected.key, seen)))
        self.found[layer] = torch.cat(read, dim=-1)[..., :positions].transpose(1, 2)
        return self.context.attend(layer, hidden, projected)


@contextmanager
def _watched(model: Transformer, found: dict[int, Weights]) -> Iterator[None]:
    def watch(block: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden, context, layer = arguments
        return hidden, _Watched(context, found), layer

    handles = [block.register_forward_pre_hook(watch) for block in model.blocks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
