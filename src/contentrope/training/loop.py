"""Training from a source of batches, every step of which depends on the seed and the step number alone.

So a run that was stopped and resumed ends, on the CPU, with the same bits as one that was not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from contentrope.errors import InputError
from contentrope.training.batches import Batches
from contentrope.training.interrupts import HeldInterrupt, interrupts_held
from contentrope.training.metrics import MetricsLog, StepReport
from contentrope.training.run import Run
from contentrope.training.steps import Stepper

__all__ = ["StepReport", "train"]


def train(
    stepper: Stepper,
    batches: Batches,
    *,
    checkpoint: Path | None = None,
    on_step: Callable[[StepReport], None] = lambda report: None,
    save_every: int = 500,
    settings: Mapping[str, Any] | None = None,
    metrics: MetricsLog | None = None,
) -> StepReport:
    """Train the stepper's model in place, resuming from ``checkpoint`` if that folder holds one.

    ``settings`` is what else must agree before a checkpoint may be resumed: the model's configuration, the
    corpus. ``on_step`` hears of every step, or where looking at the loss is dear, of every few. ``metrics``
    records some of them. Ctrl-C is taken between two steps, saves, and is raised again. Of several processes all
    call this, and the first one writes and reports.
    """
    if save_every < 1:
        raise InputError(f"save_every must be at least 1, got {save_every}")
    run, team = Run(stepper, batches, {"train": asdict(stepper.config), **(settings or {})}), stepper.team
    if checkpoint is not None:
        run.restore(checkpoint)
    if metrics is not None:
        team.together(lambda: metrics.resume(run.step) if team.leads else None)
    stepper.model.train()
    devices = range(torch.cuda.device_count())
    with torch.random.fork_rng(devices=devices), interrupts_held(team.anyone) as raise_if_held:
        try:
            while not run.finished:
                run.advance()
                looked = run.look(at_once=run.finished or run.step % save_every == 0)
                # Before the checkpoint: a run that is resumed from there has recorded what lies before.
                if looked and metrics is not None:
                    team.together(lambda: metrics.record(run.report()) if team.leads else None)
                if checkpoint is not None and (run.step % save_every == 0 or run.finished):
                    run.save(checkpoint)
                if looked:
                    team.together(lambda: on_step(run.report()) if team.leads else None)
                raise_if_held()
        except KeyboardInterrupt as interrupt:
            # One of several processes may save only when all of them have come here.
            all_here = team.size == 1 or isinstance(interrupt, HeldInterrupt)
            if checkpoint is not None and all_here and not stepper.updating:
                run.look(at_once=True)
                run.save(checkpoint)
            raise
    return run.report()
