"""When input may be checked by value."""

from __future__ import annotations

import torch
from torch import Tensor


def can_be_read(x: Tensor) -> bool:
    """Whether checks may look at values: not while a compiler traces or a CUDA graph is captured."""
    if torch.compiler.is_compiling():
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())
