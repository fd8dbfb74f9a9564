"""What a model begins with. The paper does not say, and it matters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

from torch import nn

from contentrope.errors import InputError
from contentrope.model import Transformer

FirstWeights = Literal["small", "torch", "torch-all"]
"""small: normal, 0.02; torch: what PyTorch's layers begin with, so embeddings of size one, and addresses at zero;
torch-all: the addresses too begin as a layer of PyTorch."""


def initialiser(kind: FirstWeights) -> Callable[[Transformer], None]:
    """Gives a fresh model its first weights."""
    if kind == "small":
        return lambda model: None
    return partial(as_torch_does, addresses=kind == "torch-all")


def as_torch_does(model: Transformer, *, addresses: bool = False) -> None:
    """The weights PyTorch's layers begin with; without ``addresses`` those begin at zero, as everywhere else."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding) and (addresses or not name.startswith("scheme.")):
            module.reset_parameters()


def check_first_weights(kind: str) -> None:
    if kind not in get_args(FirstWeights):
        raise InputError(f"initialisation must be one of {', '.join(get_args(FirstWeights))}; got {kind!r}")
