"""Models of one variant, trained with several seeds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from contentrope.config import ModelConfig
from contentrope.evaluation import perplexity, shown
from contentrope.model import Transformer
from contentrope.results import environment, finite_or_none
from contentrope.stacked import can_be_stacked
from contentrope.training import Batches, MetricsLog, Stepper, StepReport, TrainConfig, train, train_together
from contentrope.training.seeds import fresh_model
from contentrope.training.together import beside, shared_checkpoint
from experiments.experiment import Tell, Trained


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
    folders = {seed: folder_of(out, variant, seed) for seed in seeds}
    torch.compiler.reset()  # else what was compiled for earlier variants counts towards the compiler's limit

    def fresh(seed: int) -> Transformer:
        return fresh_model(config, seed, device, initialise)

    def hear(seed: int, report: StepReport) -> None:
        tell(Trained(variant, seed, report))

    begun = any((folder / "checkpoint").exists() for folder in folders.values())
    if together and len(seeds) > 1 and (shared_checkpoint(folders).exists() or not begun):
        models = {seed: fresh(seed) for seed in seeds}
        if can_be_stacked(models[seeds[0]]):  # leaves a finished checkpoint for every seed
            train_together(models, training, batches, folders, settings=settings, on_step=hear)
        del models
    stepper: Stepper | None = None
    for seed, folder in folders.items():
        stepper = stepper_for(seed, fresh(seed), training, stepper)
        model = cast(Transformer, stepper.model)
        last = train(
            stepper,
            batches,
            checkpoint=folder / "checkpoint",
            on_step=lambda report, seed=seed: hear(seed, report),  # type: ignore[misc]
            settings=settings,
            metrics=MetricsLog(folder),
        )
        facts = training_facts(last, stepper) | {"parameters": size_of(model), "environment": environment(device)}
        facts |= {"backend": model.backend, "model": model.config.to_dict(), "seeds_together": beside(folder)}
        yield TrainedModel(seed, model, folder, facts)
        model.train()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # other variants may be computed beside this one


def stepper_for(seed: int, fresh: nn.Module, training: TrainConfig, before: Stepper | None) -> Stepper:
    """One model and stepper for all seeds: what was compiled for the first serves the others."""
    if before is None:
        return Stepper(fresh, replace(training, seed=seed))
    before.restart(seed, fresh.state_dict())
    return before


def training_facts(last: StepReport, stepper: Stepper) -> dict[str, Any]:
    """What a result file says of any training."""
    return {
        "final_loss": last.loss,
        "training_seconds": last.seconds,
        "steps_per_second": last.steps_per_second,
        "acceleration": stepper.acceleration,
    }


def size_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def folder_of(out: Path, variant: str, seed: int) -> Path:
    return out / "runs" / re.sub(r"[^\w.=-]+", "-", variant) / f"seed-{seed}"


# --- perplexity ----------------------------------------------------------------------------------------------------


def perplexities(
    model: Any, held_out: Tensor, most: Mapping[int, int | None], hear: Callable[[str], None], **how: Any
) -> dict[str, float | None]:
    """By length of the windows, of at ``most`` so many tokens; ``hear`` is told of each."""
    found = {}
    for length, tokens in most.items():
        found[str(length)] = finite_or_none(perplexity(model, held_out, length, max_tokens=tokens, **how))
        hear(_at(length, found[str(length)]))
    return found


def in_short(by_length: Mapping[str, float | None]) -> str:
    """
    >>> in_short({"256": 4.2, "4096": None})
    'perplexity 4.20 at 256, inf at 4,096'
    """
    return "perplexity " + ", ".join(_at(int(length), value) for length, value in by_length.items())


def _at(length: int, value: float | None) -> str:
    return f"{shown(value)} at {length:,}"
