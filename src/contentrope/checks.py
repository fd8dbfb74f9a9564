"""When input may be checked by value."""

from __future__ import annotations

import torch
from torch import Tensor


def can_be_read(x: Tensor) -> bool:
    """Whether checks may look at values: not while a compiler traces or a CUDA graph is captured."""
    if torch.compiler.is_compiling():
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def may_be_waited_for(x: Tensor) -> bool:
    """The same, but not in training on a GPU: at every step the processor would wait there, and the GPU for it after
    that. What is wrong in training shows in the loss."""
    return can_be_read(x) and not (x.is_cuda and torch.is_grad_enabled())
