"""What a model begins with. The paper does not say, and it matters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import nn

from contentrope.model import Transformer

Initialisation = Literal["small", "linear", "torch", "torch-all"]
"""small: normal, 0.02; linear: linear layers as PyTorch's begin, embeddings small; torch: embeddings too, of size one;
torch-all: addresses too, which else begin at zero."""
OF_PYTORCH: dict[Initialisation, tuple[str, ...]] = {
    "small": (),
    "linear": ("linear",),
    "torch": ("linear", "embedding"),
    "torch-all": ("linear", "embedding", "address"),
}
"""What begins as a layer of PyTorch does."""


def initialiser(kind: Initialisation) -> Callable[[Transformer], None]:
    """A function that initialises a fresh model in place."""

    def begin(model: Transformer) -> None:
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding) and _part(name, module) in OF_PYTORCH[kind]:
                module.reset_parameters()

    return begin


def _part(name: str, module: nn.Module) -> str:
    if name.startswith("scheme."):
        return "address"
    return "embedding" if isinstance(module, nn.Embedding) else "linear"
