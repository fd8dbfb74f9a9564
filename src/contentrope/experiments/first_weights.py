"""What a model begins with. The paper does not say, and it matters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from torch import nn

from contentrope.errors import InputError
from contentrope.model import Transformer

FirstWeights = Literal["small", "torch"]
"""small: normal, 0.02; torch: what PyTorch's layers begin with, so embeddings of size one."""


def initialiser(kind: FirstWeights) -> Callable[[Transformer], None]:
    """Gives a fresh model its first weights."""
    return as_torch_does if kind == "torch" else lambda model: None


def as_torch_does(model: Transformer) -> None:
    """The weights PyTorch's layers begin with; what a scheme adds begins as it does, addresses at zero."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding) and not name.startswith("scheme."):
            module.reset_parameters()


def check_first_weights(kind: str) -> None:
    if kind not in get_args(FirstWeights):
        raise InputError(f"initialisation must be one of {', '.join(get_args(FirstWeights))}; got {kind!r}")
