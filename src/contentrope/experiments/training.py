"""A small trainer whose every step depends on the seed and the step number alone.

So a run that was stopped and resumed ends, on the CPU, with the same bits as one that was not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn, optim

from contentrope.config import differences
from contentrope.errors import CheckpointError, InputError
from contentrope.experiments import checkpoint as checkpoints
from contentrope.experiments.interrupts import interrupts_held


class DivergedError(RuntimeError):
    """The loss or its gradient became NaN or infinite."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """What decides the course of a training run.

    >>> TrainConfig(steps=100, batch_size=8, length=64, warmup=10).learning_rate_at(4)
    0.00015
    """

    steps: int
    batch_size: int
    length: int
    learning_rate: float = 3e-4
    weight_decay: float = 0.1
    clip: float = 1.0
    warmup: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("batch_size", 1), ("length", 1), ("warmup", 0), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"{name} must be an integer of at least {least}, got {value!r}")
        for name in ("learning_rate", "clip"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise InputError(f"{name} must be positive and finite, got {getattr(self, name)}")
        if not 0.0 <= self.weight_decay < math.inf:
            raise InputError(f"weight_decay must be at least 0 and finite, got {self.weight_decay}")
        if self.warmup >= self.steps:
            raise InputError(f"warmup {self.warmup} must be shorter than steps {self.steps}")

    def learning_rate_at(self, step: int) -> float:
        """Linear warm-up, then half a cosine that would reach zero one step after the last."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        progress = (step - self.warmup) / (self.steps - self.warmup)
        return self.learning_rate * (1.0 + math.cos(math.pi * progress)) / 2.0

    def batch_at(self, data: Int[Tensor, "tokens"], step: int) -> Int[Tensor, "batch window"]:
        """The windows of one step: ``length`` inputs and, shifted by one, as many targets.

        >>> config = TrainConfig(steps=10, batch_size=2, length=4)
        >>> config.batch_at(torch.arange(100), step=3).shape
        torch.Size([2, 5])
        """
        if len(data) < self.length + 1:
            raise InputError(f"the data has {len(data)} tokens; length {self.length} needs {self.length + 1}")
        generator = torch.Generator().manual_seed(_mixed(self.seed, step, 0))
        starts = torch.randint(len(data) - self.length, (self.batch_size, 1), generator=generator)
        return data[starts + torch.arange(self.length + 1)].long()


@dataclass(frozen=True)
class StepReport:
    """Where a run stands after a step. ``loss`` is smoothed over about the last fifty."""

    step: int
    steps: int
    loss: float
    tokens_per_second: float
    seconds: float
    """Spent in steps, those before a resume included."""

    @property
    def seconds_left(self) -> float:
        return self.seconds / max(self.step, 1) * (self.steps - self.step)


def train(
    model: nn.Module,
    data: Int[Tensor, "tokens"],
    config: TrainConfig,
    *,
    checkpoint: Path | None = None,
    on_step: Callable[[StepReport], None] = lambda report: None,
    save_every: int = 200,
    settings: Mapping[str, Any] | None = None,
) -> StepReport:
    """Train ``model`` in place, resuming from ``checkpoint`` if that folder holds one.

    ``settings`` is what else must agree before a checkpoint may be resumed: the model's configuration, the
    corpus. Ctrl-C is taken between two steps, saves, and is raised again.
    """
    if save_every < 1:
        raise InputError(f"save_every must be at least 1, got {save_every}")
    run = _Run(model, data, config, {"train": asdict(config), **(settings or {})})
    if checkpoint is not None:
        run.restore(checkpoint)
    model.train()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())), interrupts_held() as raise_if_held:
        try:
            while run.step < config.steps:
                run.advance()
                if checkpoint is not None and (run.step % save_every == 0 or run.step == config.steps):
                    run.save(checkpoint)
                on_step(run.report())
                raise_if_held()
        except KeyboardInterrupt:
            if checkpoint is not None and not run.updating:
                run.save(checkpoint)
            raise
    return run.report()


class _Run:
    """A model, its optimizer, and how far they have come."""

    def __init__(self, model: nn.Module, data: Tensor, config: TrainConfig, settings: dict[str, Any]) -> None:
        self.model, self.data, self.config, self.settings = model, data, config, settings
        self.device = next(model.parameters()).device
        self.optimizer = _optimizer(model, config)
        self.step, self.loss, self.seconds = 0, math.nan, 0.0
        self.updating = False
        """True while only some of the weights have moved: not a state to save."""

    def advance(self) -> None:
        began = time.perf_counter()
        windows = self.config.batch_at(self.data, self.step).to(self.device)
        torch.manual_seed(_mixed(self.config.seed, self.step, 1))  # dropout, too, follows the step
        logits = self.model(windows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        value = self._finite(loss.item(), norm.item())
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate_at(self.step)
        self.updating = True
        self.optimizer.step()
        self.step += 1
        self.loss = value if self.step == 1 else self.loss + 0.02 * (value - self.loss)
        self.seconds += time.perf_counter() - began
        self.updating = False

    def report(self) -> StepReport:
        tokens = self.step * self.config.batch_size * self.config.length
        speed = tokens / max(self.seconds, 1e-9)
        return StepReport(self.step, self.config.steps, self.loss, speed, self.seconds)

    def save(self, folder: Path) -> None:
        if self.step:
            state = {"step": self.step, "loss": self.loss, "seconds": self.seconds, "settings": self.settings}
            checkpoints.save(folder, self.step, checkpoints.pack(self.model, self.optimizer), state)

    def restore(self, folder: Path) -> None:
        found = checkpoints.latest(folder)
        if found is None:
            return
        tensors, state = found
        unlike = differences(self.settings, state["settings"])
        if unlike:
            raise CheckpointError(
                f"the checkpoint in {folder} belongs to another run ({'; '.join(unlike)}); "
                "use its settings, or another folder"
            )
        checkpoints.unpack(tensors, self.model, self.optimizer)
        self.step, self.loss, self.seconds = state["step"], state["loss"], state["seconds"]

    def _finite(self, loss: float, norm: float) -> float:
        if math.isfinite(loss) and math.isfinite(norm):
            return loss
        raise DivergedError(
            f"step {self.step + 1}: loss {loss}, gradient norm {norm}; weights and checkpoint are as before. "
            f"Start again with a learning_rate below {self.config.learning_rate} or a longer warmup"
        )


def _optimizer(model: nn.Module, config: TrainConfig) -> optim.AdamW:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        return optim.AdamW(trained, config.learning_rate, weight_decay=config.weight_decay, fused=True)
    except RuntimeError:  # a device without the fused kernel
        return optim.AdamW(trained, config.learning_rate, weight_decay=config.weight_decay)


def _mixed(*numbers: int) -> int:
    """One well-spread seed out of several small numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
