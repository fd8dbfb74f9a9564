"""The clock and the memory of a device."""

from __future__ import annotations

import gc
import time

import torch


class Gauge:
    """Reads when the device has done all it was asked to; a CPU's memory cannot be told from the process's.

    >>> gauge = Gauge("cpu")
    >>> before = gauge.seconds()
    >>> gauge.seconds() >= before, gauge.allocated(), gauge.most_allocated()
    (True, None, None)
    """

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.on_gpu = self.device.type == "cuda"

    def seconds(self) -> float:
        if self.on_gpu:
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def allocated(self) -> int | None:
        """Bytes of all tensors; from now on :meth:`most_allocated` counts anew."""
        if not self.on_gpu:
            return None
        torch.cuda.reset_peak_memory_stats(self.device)
        return torch.cuda.memory_allocated(self.device)

    def most_allocated(self) -> int | None:
        """The most bytes at a time since the last :meth:`allocated`."""
        return torch.cuda.max_memory_allocated(self.device) if self.on_gpu else None

    def forget_compiled(self) -> None:
        """Nothing compiled so far is used again: it would keep its model alive, and slow the look for what is."""
        torch.compiler.reset()
        self.free()

    def free(self) -> None:
        """Give back what nobody holds any more."""
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()
