"""Several models of one make as one module: every weight has a leading dimension of models.

Each model reads a contiguous slice of the batch, in order. Small models leave a GPU idle
most of the time; three together cost little more than one.

Shapes: rows (models x the rows of each), then whatever one model has.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd import Function

from contentrope.errors import InputError

Model = TypeVar("Model", bound=nn.Module)
PARTS = 16
"""Into which rows are cut for the gradient of a weight, or as many of them as go into their number."""


def linear(
    x: Float[Tensor, "rows *places size"], weight: Float[Tensor, "*models out size"], bias: Float[Tensor, "*models out"]
) -> Float[Tensor, "rows *places out"]:
    """As ``F.linear``, where weights may be those of several models."""
    if weight.ndim == 2:
        return F.linear(x, weight, bias)
    given = [x.reshape(len(weight), -1, x.shape[-1]), weight, bias]
    if torch.is_autocast_enabled(device := x.device.type):
        given = [tensor.to(torch.get_autocast_dtype(device)) for tensor in given]
    return _Linear.apply(*given).view(*x.shape[:-1], -1)


class _Linear(Function):
    """``rows W' + b`` for every model.

    The gradient of a small weight is a product with few entries, each a sum over all rows: as one it would keep a few
    cores of a GPU busy for long. So it is taken over parts of the rows, which are then added up.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight)
        # A sum of its own: a compiler joins it with what follows, where baddbmm begins by writing biases to memory.
        return torch.bmm(rows, weight.transpose(1, 2)) + bias[:, None]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows, weight = ctx.saved_tensors
        parts = math.gcd(rows.shape[1], PARTS)
        by_part = [x.reshape(-1, x.shape[1] // parts, x.shape[2]) for x in (grad, rows)]
        to_weight = (by_part[0].transpose(1, 2) @ by_part[1]).unflatten(0, (-1, parts)).sum(1)
        return grad @ weight, to_weight, grad.sum(1)


def layer_norm(
    x: Float[Tensor, "rows *places size"],
    weight: Float[Tensor, "*models size"],
    bias: Float[Tensor, "*models size"],
    eps: float,
) -> Float[Tensor, "rows *places size"]:
    """As ``F.layer_norm`` over the last dimension, where weights may be those of several models."""
    if weight.ndim == 1:
        return F.layer_norm(x, weight.shape, weight, bias, eps)
    normed = F.layer_norm(x, weight.shape[-1:], eps=eps).reshape(len(weight), -1, x.shape[-1])
    return torch.addcmul(bias[:, None], normed, weight[:, None]).view(x.shape)


class _Stacked(nn.Module):
    """Weights under the names they have in one model."""

    def __init__(self, twins: Sequence[nn.Module]) -> None:
        super().__init__()
        for name, _ in twins[0].named_parameters():
            together = torch.stack([twin.get_parameter(name).detach() for twin in twins])
            self.register_parameter(name, nn.Parameter(together))


class StackedLinear(_Stacked):
    weight: Tensor
    bias: Tensor

    def forward(self, x: Float[Tensor, "rows *places size"]) -> Float[Tensor, "rows *places out"]:
        return linear(x, self.weight, self.bias)


class StackedLayerNorm(_Stacked):
    weight: Tensor
    bias: Tensor

    def __init__(self, twins: Sequence[nn.LayerNorm]) -> None:
        super().__init__(twins)
        self.eps = twins[0].eps

    def forward(self, x: Float[Tensor, "rows *places size"]) -> Float[Tensor, "rows *places size"]:
        return layer_norm(x, self.weight, self.bias, self.eps)


class StackedEmbedding(_Stacked):
    weight: Tensor

    def forward(self, ids: Int[Tensor, "rows *places"]) -> Float[Tensor, "rows *places size"]:
        models, count, _ = self.weight.shape
        first = count * torch.arange(models, device=ids.device)[:, None]
        own_ids = ids.reshape(models, -1) + first
        return F.embedding(own_ids, self.weight.flatten(0, 1)).view(*ids.shape, -1)


KINDS: dict[type, Callable[..., nn.Module]] = {
    nn.Linear: StackedLinear,
    nn.LayerNorm: StackedLayerNorm,
    nn.Embedding: StackedEmbedding,
}


def stack(models: Sequence[Model]) -> Model:
    """One module that computes what the models do; their own weights are left alone.

    >>> ones = [nn.Linear(2, 1) for _ in range(2)]
    >>> x = torch.randn(2, 5, 2)
    >>> both = stack([nn.Sequential(one) for one in ones])
    >>> torch.allclose(both(x), torch.cat([ones[0](x[:1]), ones[1](x[1:])]))
    True
    """
    together = copy.deepcopy(models[0])
    for name, module in list(together.named_modules()):
        if type(module) in KINDS:
            twins = [model.get_submodule(name) for model in models]
            together.set_submodule(name, KINDS[type(module)](twins))
        elif getattr(module, "of_several_models", False):
            for weight, _ in list(module.named_parameters(recurse=False)):
                every = [model.get_submodule(name).get_parameter(weight).detach() for model in models]
                module.register_parameter(weight, nn.Parameter(torch.stack(every)))
        elif own := [weight for weight, _ in module.named_parameters(recurse=False)]:
            raise InputError(
                f"{type(module).__name__} has weights of its own ({', '.join(own)}), which models side by side "
                "cannot have; train them one after the other"
            )
    return together


def can_be_stacked(model: nn.Module) -> bool:
    """Whether :func:`stack` takes the model."""
    return all(
        type(module) in KINDS or getattr(module, "of_several_models", False) or not [*module.parameters(recurse=False)]
        for module in model.modules()
    )
