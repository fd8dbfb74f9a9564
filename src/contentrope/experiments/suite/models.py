"""Models of one variant, trained with several seeds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from contentrope.config import ModelConfig
from contentrope.experiments.suite.experiment import Tell, Trained
from contentrope.model import Transformer
from contentrope.results import environment
from contentrope.stacked import can_be_stacked
from contentrope.training import Batches, MetricsLog, Stepper, StepReport, TrainConfig, train, train_together
from contentrope.training.together import beside, shared_checkpoint


class TrainedModel(NamedTuple):
    seed: int
    model: Transformer
    folder: Path
    facts: dict[str, Any]
    """What training took, for the result file."""


def trained_models(
    variant: str,
    seeds: list[int],
    config: ModelConfig,
    training: TrainConfig,
    batches: Batches,
    *,
    settings: Mapping[str, Any],
    out: Path,
    device: str,
    tell: Tell,
    together: bool = False,
    initialise: Callable[[Transformer], None] = lambda model: None,
) -> Iterator[TrainedModel]:
    """A model per seed, one after the other. ``settings`` must agree before a checkpoint is resumed.

    ``together``: all seeds are trained in the same updates first, where none of them has begun and the model allows it.
    ``initialise`` may give a fresh model other weights.
    """
    settings = {"model": config.to_dict(), **settings}
    torch.compiler.reset()  # else what was compiled for earlier variants counts towards the compiler's limit

    def fresh(seed: int) -> Transformer:
        return fresh_model(config, seed, device, initialise)

    if together and len(seeds) > 1:
        _train_together(variant, seeds, fresh, training, batches, settings, out, tell)
    for seed, model, stepper in _steppers(fresh, training, seeds):
        folder = folder_of(out, variant, seed)
        last = train(
            stepper,
            batches,
            checkpoint=folder / "checkpoint",
            on_step=lambda report, seed=seed: tell(Trained(variant, seed, report)),  # type: ignore[misc]
            settings=settings,
            metrics=MetricsLog(folder),
        )
        yield TrainedModel(
            seed, model, folder, _facts(last, stepper, model, device) | {"seeds_together": beside(folder)}
        )
        model.train()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # other variants may be computed beside this one


def _train_together(
    variant: str,
    seeds: list[int],
    fresh: Callable[[int], Transformer],
    training: TrainConfig,
    batches: Batches,
    settings: Mapping[str, Any],
    out: Path,
    tell: Tell,
) -> None:
    """Leaves a finished checkpoint for every seed; nothing where a seed has begun alone, or the model cannot."""
    folders = {seed: folder_of(out, variant, seed) for seed in seeds}
    models = {seed: fresh(seed) for seed in seeds}
    has_begun_alone = any((folder / "checkpoint").exists() for folder in folders.values())
    if (has_begun_alone and not shared_checkpoint(folders).exists()) or not can_be_stacked(models[seeds[0]]):
        return
    hear = lambda seed, report: tell(Trained(variant, seed, report))  # noqa: E731
    train_together(models, training, batches, folders, settings=settings, on_step=hear)


def _facts(last: StepReport, stepper: Stepper, model: Transformer, device: str) -> dict[str, Any]:
    return {
        "final_loss": last.loss,
        "training_seconds": last.seconds,
        "steps_per_second": last.steps_per_second,
        "acceleration": stepper.acceleration,
        "backend": model.backend,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "model": model.config.to_dict(),
        "environment": environment(device),
    }


def _steppers(
    fresh: Callable[[int], Transformer], training: TrainConfig, seeds: list[int]
) -> Iterator[tuple[int, Transformer, Stepper]]:
    """One model and stepper for all seeds: what was compiled for the first serves the others."""
    model = fresh(seeds[0])
    stepper = Stepper(model, replace(training, seed=seeds[0]))
    yield seeds[0], model, stepper
    for seed in seeds[1:]:
        stepper.restart(seed, fresh(seed).state_dict())
        yield seed, model, stepper


def fresh_model(
    config: ModelConfig, seed: int, device: str, initialise: Callable[[Transformer], None] = lambda model: None
) -> Transformer:
    """A model with the first weights of ``seed``, which are the same on every device."""
    with seeded(seed):
        model = Transformer(config)
        initialise(model)
    return model.to(device)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers that depend on ``seed`` alone, for the time of the block."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def folder_of(out: Path, variant: str, seed: int) -> Path:
    return out / "runs" / re.sub(r"[^\w.=-]+", "-", variant) / f"seed-{seed}"


def finite_or_none(value: Any) -> Any:
    """JSON has no infinity: None in its place, in lists and dictionaries too."""
    if isinstance(value, dict):
        return {key: finite_or_none(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [finite_or_none(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
