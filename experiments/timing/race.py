"""Steps in turn: the first of every contender, then the second of every one.

A clock that drifts, or a device that gets warm, so slows all of them alike.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

import torch

from contentrope.errors import BackendError, InputError
from contentrope.training import Batch, DivergedError, Stepper

Maker = Callable[[], Stepper]
REFUSALS = (torch.OutOfMemoryError, BackendError, InputError)
"""What may befall one contender on this device, and does not concern the others."""
LONGEST_REASON = 200


class Gauge:
    """The clock and the memory of a device, which has then done all it was asked to.

    A CPU's memory cannot be told from the process's.

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

    def free(self) -> None:
        """Give back what nobody holds any more."""
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()


class Contender:
    """A model that is trained step by step, its times, and its share of the device's memory."""

    def __init__(self, make: Maker, gauge: Gauge) -> None:
        before = gauge.allocated()
        self.gauge, self.stepper = gauge, make()
        self.milliseconds: list[float] = []
        self.held = _less(gauge.allocated(), before)
        """Bytes of its own tensors between two steps."""
        self.peak: int | None = None

    def step(self, batch: Batch, number: int) -> None:
        of_others = _less(self.gauge.allocated(), self.held)
        begin = self.gauge.seconds()
        self.stepper.update(batch, number)
        self.milliseconds.append(1e3 * (self.gauge.seconds() - begin))
        own = _less(self.gauge.most_allocated(), of_others)
        if own is not None and number:  # the first step also holds what the compiler tries out
            self.peak = max(own, self.peak or 0)
        self.held = _less(self.gauge.allocated(), of_others)

    def summary(self, warmup: int) -> dict[str, Any]:
        timed = self.milliseconds[warmup:]
        return {
            "steps_ms": timed,
            "median_ms": median(timed),
            "mean_ms": fmean(timed),
            "peak_bytes": self.peak,
            "parameters": sum(parameter.numel() for parameter in self.stepper.model.parameters()),
        }


def race(
    makers: Mapping[str, Maker],
    batches: Sequence[Batch],
    warmup: int,
    gauge: Gauge,
    ready: Callable[[str], None],
    failures: tuple[type[Exception], ...] = REFUSALS,
) -> dict[str, dict[str, Any]]:
    """By contender: its times after ``warmup`` steps, or nulls and why. ``ready`` hears of every first step.

    Who fails in one of the ways of ``failures`` leaves, and the others go on.
    """
    racing: dict[str, Contender] = {}
    failed: dict[str, str] = {}

    def attempt(name: str, action: Callable[[], None]) -> None:
        try:
            action()
            return
        except failures as error:
            if isinstance(error, DivergedError):
                raise
            failed[name] = reason(error)
        # Only now: the frames of an exception hold the contender too.
        racing.pop(name, None)
        gauge.free()

    for name, make in makers.items():
        attempt(name, lambda name=name, make=make: racing.update({name: Contender(make, gauge)}))  # type: ignore[misc]
    for number, batch in enumerate(batches):
        for name in list(racing):
            attempt(name, lambda name=name: racing[name].step(batch, number))  # type: ignore[misc]  # noqa: B023
            if not number and name in racing:
                ready(name)
    nothing = dict.fromkeys(("steps_ms", "median_ms", "mean_ms", "peak_bytes"))
    return {
        name: {**nothing, "failed": failed[name]} if name in failed else racing[name].summary(warmup) for name in makers
    }


def reason(error: BaseException) -> str:
    """The first sentence or two of an error: what follows is advice for this machine.

    >>> reason(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8 GiB"))
    'CUDA out of memory. Tried to allocate 2.00 GiB.'
    """
    words = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, torch.OutOfMemoryError) or "out of memory" in words:
        words = words.partition(" GPU ")[0]
    return words if len(words) <= LONGEST_REASON else words[: LONGEST_REASON - 1] + "…"


def _less(bytes_now: int | None, bytes_before: int | None) -> int | None:
    return None if bytes_now is None or bytes_before is None else bytes_now - bytes_before
