"""How large the tensors of a computation are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Largest(TorchDispatchMode):
    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        # A view of something expanded is as large as what it shows, a view of a tensor no larger than the tensor.
        self.numbers = max([self.numbers, *(x.numel() for x in tree_leaves(out) if isinstance(x, Tensor))])
        return out


def largest_tensor(compute: Callable[[], Any]) -> int:
    """Numbers in the largest tensor that came into being, forward and backward."""
    with _Largest() as mode:
        compute()
    return mode.numbers


@contextmanager
def counting_kept() -> Iterator[dict[int, int]]:
    """Bytes of every storage that autograd keeps for the backward pass."""
    kept: dict[int, int] = {}

    def note(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        yield kept
