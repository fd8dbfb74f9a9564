"""Several seeds of one small model in one update, each as if it were alone: own batches, own loss, own clipping.

All that is drawn at random inside a step, as dropout is, is drawn for all of them at once.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from contentrope.errors import InputError
from contentrope.results import read_json, write_json
from contentrope.stacked import stack
from contentrope.training import checkpoint as checkpoints
from contentrope.training.batches import IGNORED, Batch, Batches
from contentrope.training.config import TrainConfig, computing_in
from contentrope.training.loop import train
from contentrope.training.metrics import MetricsLog, StepReport, smoothed
from contentrope.training.steps import Stepper

TOGETHER = "together"
"""Name of the checkpoint of all, and of the file that says who was trained with whom."""


class BatchesTogether:
    """The batches of several seeds, concatenated."""

    def __init__(self, batches: Batches, seeds: Sequence[int]) -> None:
        # A source may keep what it drew for a seed: each seed has its own.
        self.by_seed = {seed: copy.copy(batches) for seed in seeds}

    def at(self, step: int, rows: int, seed: int) -> Batch:
        found = [source.at(step, rows, of) for of, source in self.by_seed.items()]
        return Batch.joined(found)


class TogetherStepper(Stepper):
    """Updates a stack of models. ``losses`` holds each one's; ``loss`` is their mean, ``norm`` the largest."""

    def __init__(self, models: Sequence[nn.Module], config: TrainConfig) -> None:
        if config.accumulate > 1:
            raise InputError(f"models side by side take a batch at once; accumulate is {config.accumulate}, use 1")
        super().__init__(stack(models), config)
        self.losses = self.loss.repeat(len(models))

    def _backward(self, batch: Batch) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with computing_in(self.config.precision, self.device):
            losses = self.loss_of(batch.inputs, batch.targets, batch.weights)
            self._backward_of(losses.sum())
        self.losses.copy_(losses.detach())
        self.loss.copy_(losses.detach().mean())
        self.norm.copy_(self._clipped())

    def _loss_of(
        self, inputs: dict[str, Tensor], targets: Int[Tensor, "rows seq"], weights: Float[Tensor, "rows seq"] | None
    ) -> Float[Tensor, "models"]:
        by_token, scored = self._cross_entropy(inputs, targets, reduction="none"), targets != IGNORED
        models = len(self.losses)
        if weights is None:
            return by_token.view(models, -1).sum(1) / scored.view(models, -1).sum(1)
        weighted = by_token * weights.flatten()
        return weighted.view(models, -1).sum(1) / (scored * weights).view(models, -1).sum(1)

    def _clipped(self) -> Tensor:
        """Each model's gradients by its own norm. Few kernels: there are more weights than work."""
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        by_model = [list(own) for own in zip(*(grad.unbind() for grad in grads), strict=True)]
        norms = torch.stack(torch._foreach_norm([grad for own in by_model for grad in own]))
        by_weight = norms.view(len(by_model), len(grads))
        total = torch.linalg.vector_norm(by_weight, dim=1)
        shrunk = (self.config.clip / (total + 1e-6)).clamp(max=1.0)
        for own, factor in zip(by_model, shrunk.unbind(), strict=True):
            torch._foreach_mul_(own, factor)
        return total.max()

    def pack_one(self, index: int) -> checkpoints.Tensors:
        """What a checkpoint of one of the models alone would hold."""
        sizes = {name: weight.shape for name, weight in self.model.named_parameters()}
        named = checkpoints.named_tensors(self.model, self.optimizer)
        stacked = {name for name, x in named.items() if sizes.get(_weight_of(name)) == x.shape}
        return {name: checkpoints.copied(x[index] if name in stacked else x) for name, x in named.items()}


def _weight_of(name: str) -> str:
    """The weight a tensor of a checkpoint belongs to: itself, or a moment of it."""
    kind, _, rest = name.partition(".")
    return rest if kind == "model" else rest.rpartition(".")[0]


def train_together(
    models: Mapping[int, nn.Module],
    config: TrainConfig,
    batches: Batches,
    folders: Mapping[int, Path],
    *,
    settings: Mapping[str, Any],
    on_step: Callable[[int, StepReport], None] = lambda seed, report: None,
    save_every: int = 500,
) -> None:
    """Train the model of every seed, and leave in its folder the finished checkpoint and metrics it would have left
    alone; its time is its share of the time of all. Stopped, it goes on where it was when called again."""
    seeds = list(models)
    stepper = TogetherStepper(list(models.values()), config)
    course = _Course(stepper, {seed: MetricsLog(folder) for seed, folder in folders.items()}, on_step)
    shared = shared_checkpoint(folders)
    last = train(
        stepper,
        BatchesTogether(batches, seeds),
        checkpoint=shared,
        on_step=course.record,
        save_every=save_every,
        settings={**settings, "seeds": seeds},
    )
    for index, seed in enumerate(seeds):
        own = {"train": asdict(replace(config, seed=seed)), **settings}
        state = {
            "step": last.step,
            "loss": last.loss if math.isnan(course.loss[index]) else course.loss[index],
            "norm": last.norm,
            "tokens_per_step": round(last.tokens_per_second / last.steps_per_second / len(seeds)),
            "seconds": last.seconds / len(seeds),
            "settings": own,
        }
        checkpoints.save(folders[seed] / "checkpoint", last.step, stepper.pack_one(index), state)
        write_json(folders[seed] / f"{TOGETHER}.json", {"seeds": seeds, "seconds": last.seconds})
    checkpoints.drop(shared)


def shared_checkpoint(folders: Mapping[int, Path]) -> Path:
    """The folder of the checkpoint of all these seeds, which is there until their training is finished."""
    return next(iter(folders.values())).parent / "-".join([TOGETHER, *map(str, folders)])


def beside(folder: Path) -> int:
    """How many seeds were trained in the updates that made the model in ``folder``."""
    path = folder / f"{TOGETHER}.json"
    return len(read_json(path)["seeds"]) if path.exists() else 1


class _Course:
    """Records the loss of each model, smoothed as that of a model alone is."""

    def __init__(
        self, stepper: TogetherStepper, logs: Mapping[int, MetricsLog], on_step: Callable[[int, StepReport], None]
    ) -> None:
        self.stepper, self.logs, self.on_step = stepper, logs, on_step
        self.step, self.loss = 0, [math.nan] * len(logs)

    def record(self, report: StepReport) -> None:
        passed, self.step = report.step - self.step, report.step
        for index, (value, (seed, log)) in enumerate(zip(self.stepper.losses.tolist(), self.logs.items(), strict=True)):
            self.loss[index] = smoothed(self.loss[index], value, passed)
            own = replace(report, loss=self.loss[index])
            log.record(own)
            self.on_step(seed, own)
