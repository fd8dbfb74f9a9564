"""Settings of a training run, checked when they are made and saved with every checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from contentrope.errors import InputError

Precision = Literal["float32", "tf32", "bf16"]
Schedule = Literal["cosine", "constant"]
Acceleration = Literal["auto", "none", "compile", "graphs"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """What decides the course of a training run.

    >>> TrainConfig(steps=100, batch_size=8, warmup=10).learning_rate_at(4)
    0.00015
    """

    steps: int = 5000
    """Updates."""
    batch_size: int = 64
    """Examples per update, over all processes and accumulated parts."""
    learning_rate: float = 3e-4
    """Peak of the learning rate."""
    schedule: Schedule = "cosine"
    """What follows the warm-up: half a cosine down to zero, or the peak to the end."""
    weight_decay: float = 0.1
    """Decoupled weight decay, on all parameters."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    warmup: int = 0
    """Updates over which the learning rate rises linearly."""
    accumulate: int = 1
    """Parts a batch is computed in, one after the other, to save memory."""
    precision: Precision = "float32"
    """float32; tf32: matrix products in TensorFloat-32; bf16: autocast. Weights are float32 always."""
    acceleration: Acceleration = "auto"
    """compile: torch.compile; graphs: that, and the whole update as one CUDA graph; auto: graphs on a GPU."""
    seed: int = 0
    """Decides the batches and everything random in a step."""

    def __post_init__(self) -> None:
        least = {"steps": 1, "batch_size": 1, "accumulate": 1, "warmup": 0, "seed": 0}
        for name, smallest in least.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
                raise InputError(f"{name} must be an integer of at least {smallest}, got {value!r}")
        for name in ("learning_rate", "clip"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise InputError(f"{name} must be positive and finite, got {getattr(self, name)}")
        if not 0.0 <= self.weight_decay < math.inf:
            raise InputError(f"weight_decay must be at least 0 and finite, got {self.weight_decay}")
        if self.warmup >= self.steps:
            raise InputError(f"warmup {self.warmup} must be shorter than steps {self.steps}")
        if self.batch_size % self.accumulate:
            raise InputError(f"batch_size {self.batch_size} does not divide into accumulate {self.accumulate} parts")
        for name, choices in (("schedule", Schedule), ("precision", Precision), ("acceleration", Acceleration)):
            if getattr(self, name) not in get_args(choices):
                raise InputError(f"{name} must be one of {', '.join(get_args(choices))}; got {getattr(self, name)!r}")

    def learning_rate_at(self, step: int) -> float:
        """Linear warm-up, then half a cosine that would reach zero one step after the last, or no change."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        if self.schedule == "constant":
            return self.learning_rate
        progress = (step - self.warmup) / (self.steps - self.warmup)
        return self.learning_rate * (1.0 + math.cos(math.pi * progress)) / 2.0


@contextmanager
def computing_in(precision: Precision, device: torch.device) -> Iterator[None]:
    """Matrix products and autocast as ``precision`` says, for the time of the block."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    try:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
