"""Steps in turn: the first of every contender, then the second of every one.

A clock that drifts, or a device that gets warm, so slows all of them alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean, median
from typing import Any

import torch

from contentrope.errors import BackendError, InputError
from contentrope.experiments.timing.gauge import Gauge
from contentrope.training import Batch, DivergedError, Stepper

Maker = Callable[[], Stepper]
REFUSALS = (torch.OutOfMemoryError, BackendError, InputError)
"""What may befall one contender on this device, and does not concern the others."""
LONGEST_REASON = 200


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
        before = self.gauge.allocated()
        of_others = _less(before, self.held)
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


class Race:
    """Contenders that take turns. Who fails in one of the ways of ``failures`` leaves, and the others go on."""

    def __init__(self, gauge: Gauge, failures: tuple[type[Exception], ...] = REFUSALS) -> None:
        self.gauge, self.failures = gauge, failures
        self.racing: dict[str, Contender] = {}
        self.failed: dict[str, str] = {}

    def run(
        self, makers: Mapping[str, Maker], batches: Sequence[Batch], warmup: int, ready: Callable[[str], None]
    ) -> dict[str, dict[str, Any]]:
        """By contender: its times after ``warmup`` steps, or nulls and why. ``ready`` hears of every first step."""
        for name, make in makers.items():
            self._attempt(name, partial(self._enter, name, make))
        for number, batch in enumerate(batches):
            for name in list(self.racing):
                self._attempt(name, partial(self._step, name, batch, number))
                if not number and name in self.racing:
                    ready(name)
        done = {name: contender.summary(warmup) for name, contender in self.racing.items()}
        return {name: done[name] if name in done else _nothing(self.failed[name]) for name in makers}

    def _enter(self, name: str, make: Maker) -> None:
        self.racing[name] = Contender(make, self.gauge)

    def _step(self, name: str, batch: Batch, number: int) -> None:
        self.racing[name].step(batch, number)

    def _attempt(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
            return
        except self.failures as error:
            if isinstance(error, DivergedError):
                raise
            self.failed[name] = reason(error)
        # Only now: the frames of an exception hold the contender too.
        self.racing.pop(name, None)
        self.gauge.free()


def reason(error: BaseException) -> str:
    """The first sentence or two of an error: what follows is advice for this machine.

    >>> reason(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8 GiB"))
    'CUDA out of memory. Tried to allocate 2.00 GiB.'
    """
    words = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, torch.OutOfMemoryError) or "out of memory" in words:
        words = words.partition(" GPU ")[0]
    return words if len(words) <= LONGEST_REASON else words[: LONGEST_REASON - 1] + "…"


def _nothing(why: str) -> dict[str, Any]:
    return {"steps_ms": None, "median_ms": None, "mean_ms": None, "peak_bytes": None, "failed": why}


def _less(bytes_now: int | None, bytes_before: int | None) -> int | None:
    return None if bytes_now is None or bytes_before is None else bytes_now - bytes_before
