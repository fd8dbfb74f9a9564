"""What goes into attention modules and comes out of them, by which the check of an attached model compares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

Outputs = list[Float[Tensor, "batch seq dim"]]
"""Of all attention modules, in the order of their layers."""


def apart(found: Outputs, expected: Outputs) -> tuple[float, int]:
    """The largest difference of a token's output, relative to its size, and the number of the module it is in."""
    errors = []
    for ours, theirs in zip(found, expected, strict=True):
        ours, theirs = ours.double(), theirs.double()
        size = theirs.norm(dim=-1)
        error = (ours - theirs).norm(dim=-1) / (size + 0.01 * size.mean() + torch.finfo(torch.float64).tiny)
        errors.append(error.max().nan_to_num(nan=torch.inf))
    worst = torch.stack(errors)
    return float(worst.max()), int(worst.argmax())


class Tapped(NamedTuple):
    inputs: Outputs
    outputs: Outputs


@contextmanager
def tapped(modules: list[nn.Module], given: Outputs | None = None) -> Iterator[Tapped]:
    """What goes into attention modules and comes out of them; ``given`` goes in instead."""
    found, handles = Tapped([], []), []

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        by_name = "hidden_states" in kwargs
        hidden = kwargs["hidden_states"] if by_name else args[0]
        if given is None:
            found.inputs.append(hidden.clone())
            return args, kwargs
        hidden = given[len(found.outputs)]
        return (args, {**kwargs, "hidden_states": hidden}) if by_name else ((hidden, *args[1:]), kwargs)

    def after(module: nn.Module, args: Any, output: Any) -> None:
        found.outputs.append((output[0] if isinstance(output, tuple) else output).clone())

    for module in modules:
        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(module.register_forward_hook(after))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
