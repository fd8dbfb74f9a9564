"""Kernels as operators of PyTorch, with their gradients.

To the compiler an operator is one node, whose insides it does not look at.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import _get_current_dispatch_mode

Keep = Callable[[Any, tuple[Any, ...], Any], None]
"""Of a context, the inputs and the output: what the backward pass needs of them is put into the context."""
Differentiate = Callable[..., tuple[Any, ...]]
"""Of the backward operator, a context and the gradients of the output: those of the inputs."""


class Operator:
    """``run`` computes, ``fake`` says what shapes will come of it. ``schema`` is the name with all that is taken and
    given, as PyTorch writes it. ``known`` is its form for the compiler."""

    def __init__(self, schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> None:
        self.run = run
        name = schema.partition("(")[0]
        signature = schema.removeprefix(name)
        self.known: Any = torch.library.custom_op(f"contentrope::{name}", run, mutates_args=(), schema=signature)
        self.known.register_fake(fake)


class Differentiable:
    """An operator with its backward pass, to be called as a function."""

    def __init__(self, forward: Operator, backward: Operator, keep: Keep, differentiate: Differentiate) -> None:
        self.known = forward.known
        self.known.register_autograd(partial(differentiate, backward.known), setup_context=keep)
        self.recorded = _recorded(forward, backward, keep, differentiate)

    def __call__(self, first: Tensor, *rest: Any) -> Any:
        route = self.known if _is_watched(first) else self.recorded
        return route(first, *rest)


def as_bytes(flags: Tensor) -> Tensor:
    """Flags as kernels read them: the same memory, but to the compiler, that of PyTorch 2.11 having no such view. It
    computes them together with what they come of."""
    return flags.to(torch.int8) if torch.compiler.is_compiling() else flags.view(torch.int8)


# The second route: autograd is told directly, as without a compiler the way through PyTorch's dispatcher takes longer
# than many a kernel. To be measured on a GPU: an eager training step (``TrainConfig(acceleration="none")``) of a small
# model, with ``route`` always ``self.known``. If it takes less than 3% longer, this section and ``recorded`` go.


def _is_watched(tensor: Tensor) -> bool:
    """Whether somebody looks at operators, or gives tensors without numbers: a compiler, a mode, a kind of tensor."""
    if torch.compiler.is_compiling():
        return True
    return type(tensor) not in (Tensor, nn.Parameter) or _get_current_dispatch_mode() is not None


def _recorded(forward: Operator, backward: Operator, keep: Keep, differentiate: Differentiate) -> Callable[..., Any]:
    class Recorded(Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            output = forward.run(*inputs)
            keep(ctx, inputs, output)
            return output

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            return differentiate(backward.run, ctx, *grads)

    return Recorded.apply


# What kernels ask of the tensors they are given.


def last_contiguous(x: Tensor) -> Tensor:
    """Kernels take any strides of rows, tokens and heads, but read a head's dimensions side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def broadcast_strides(cos: Tensor, sin: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Cosines and sines, of which one row or one head may be broadcast to all, and their strides: zero there."""
    if any(given not in (1, asked) for given, asked in zip(cos.shape, shape, strict=True)):
        raise ValueError(f"cosines of shape {tuple(cos.shape)} cannot be broadcast to {shape}")
    cos, sin = cos.contiguous(), sin.contiguous()
    return cos, sin, tuple([0 if size == 1 else step for size, step in zip(cos.shape[:3], cos.stride(), strict=False)])
