"""How far a run has come: its steps, its loss, its time, and their place in a checkpoint."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from contentrope.config import differences
from contentrope.errors import CheckpointError
from contentrope.training import checkpoint as checkpoints
from contentrope.training.batches import Batches
from contentrope.training.metrics import StepReport, smoothed
from contentrope.training.steps import Stepper


class Run:
    """A stepper, its batches, and how far they have come."""

    def __init__(self, stepper: Stepper, batches: Batches, settings: dict[str, Any]) -> None:
        self.stepper, self.batches, self.settings = stepper, batches, settings
        self.config = stepper.config
        self.step, self.loss, self.norm, self.tokens_per_step = 0, math.nan, math.nan, 0
        self.seconds, self.began = 0.0, time.perf_counter()
        self.looked_at, self.steady = 0, (0, 0.0)
        """The step of the last look; step and seconds of the first one in this process."""

    @property
    def finished(self) -> bool:
        return self.step >= self.config.steps

    def advance(self) -> None:
        batch = self.batches.at(self.step, self.config.batch_size, self.config.seed)
        self.stepper.update(batch, self.step)
        self.tokens_per_step = batch.targets.numel()
        self.step += 1

    def look(self, *, at_once: bool = False) -> bool:
        """Read the loss if it is time to, and note the time it took to get here."""
        passed = self.step - self.looked_at
        if not passed or not (at_once or self.step % self.stepper.reads_every == 0):
            return False
        self.stepper.require_finite(self.step - 1)
        value, self.norm = self.stepper.loss.item(), self.stepper.norm.item()
        self.loss = smoothed(self.loss, value, passed)
        now = time.perf_counter()
        self.seconds, self.began, self.looked_at = self.seconds + now - self.began, now, self.step
        if not self.steady[0]:
            self.steady = self.step, self.seconds
        return True

    def report(self) -> StepReport:
        steps, seconds = self.step - self.steady[0], self.seconds - self.steady[1]
        speed = steps / max(seconds, 1e-9) if steps else self.step / max(self.seconds, 1e-9)
        return StepReport(
            step=self.step,
            steps=self.config.steps,
            loss=self.loss,
            norm=self.norm,
            learning_rate=self.config.learning_rate_at(max(self.step - 1, 0)),
            tokens_per_second=speed * self.tokens_per_step,
            steps_per_second=speed,
            seconds=self.seconds,
        )

    def save(self, folder: Path) -> None:
        if not self.step:
            return
        names = ("step", "loss", "norm", "tokens_per_step", "seconds", "settings")
        state = {name: getattr(self, name) for name in names}
        tensors, team = self.stepper.pack(), self.stepper.team
        team.together(lambda: checkpoints.save(folder, self.step, tensors, state) if team.leads else None)

    def restore(self, folder: Path) -> None:
        team = self.stepper.team
        found = team.together(lambda: self._found(folder))
        steps = team.everyone(found[1]["step"] if found else 0)
        if len(set(steps)) > 1:
            raise CheckpointError(
                f"the processes find checkpoints of different steps {steps} in {folder}; use a folder that all share"
            )
        if found is None:
            return
        tensors, state = found
        team.together(lambda: self._unpack(tensors, checkpoints.place_of(folder, state["step"])))
        self.step, self.loss, self.norm = state["step"], state["loss"], state["norm"]
        self.tokens_per_step, self.seconds, self.looked_at = state["tokens_per_step"], state["seconds"], self.step

    def _unpack(self, tensors: checkpoints.Tensors, place: Path) -> None:
        try:
            self.stepper.unpack(tensors)
        except CheckpointError as error:
            raise CheckpointError(f"{place} does not fit: {error}") from error

    def _found(self, folder: Path) -> tuple[checkpoints.Tensors, dict[str, Any]] | None:
        """The newest checkpoint, if it belongs to this run."""
        found = checkpoints.latest(folder)
        unlike = differences(self.settings, found[1]["settings"]) if found else []
        if unlike:
            raise CheckpointError(
                f"the checkpoint in {folder} belongs to another run ({'; '.join(unlike)}); "
                "use its settings, or another folder"
            )
        if found and found[1]["step"] > self.config.steps:
            place = checkpoints.place_of(folder, found[1]["step"])
            raise CheckpointError(
                f"checkpoint {place} is beyond the last step, {self.config.steps}; delete that folder"
            )
        return found
