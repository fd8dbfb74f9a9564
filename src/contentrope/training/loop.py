"""Training from a source of batches, every step of which depends on the seed and the step number alone.

So a run that was stopped and resumed ends, on the CPU, with the same bits as one that was not.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from contentrope.config import differences
from contentrope.errors import CheckpointError, InputError
from contentrope.training import checkpoint as checkpoints
from contentrope.training.batches import Batches
from contentrope.training.metrics import MetricsLog, StepReport, smoothed
from contentrope.training.steps import Stepper


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
    """The last report of a training run, which changes the stepper's model in place and goes on from ``checkpoint``
    if that folder holds one.

    ``settings`` is what else must agree before a checkpoint may be resumed: the model's configuration, the corpus.
    ``on_step`` is called after every step, or where reading the loss is dear, after every few. ``metrics`` records
    some of them. Ctrl-C is taken between two steps, saves, and is raised again. Of several processes all call this,
    and the first one writes and reports.
    """
    if save_every < 1:
        raise InputError(f"save_every must be at least 1, got {save_every}")
    run, team = Run(stepper, batches, {"train": asdict(stepper.config), **(settings or {})}), stepper.team
    if checkpoint is not None:
        run.restore(checkpoint)
    if metrics is not None:
        team.lead(lambda: metrics.resume(run.step))
    stepper.model.train()
    devices = range(torch.cuda.device_count())
    with torch.random.fork_rng(devices=devices), interrupts_held(team.anyone) as raise_if_held:
        try:
            while not run.finished:
                run.advance()
                is_due = run.finished or run.step % save_every == 0
                is_read = run.read_loss(at_once=is_due)
                # Before the checkpoint: a run that is resumed from there has recorded what lies before.
                if is_read and metrics is not None:
                    team.lead(lambda: metrics.record(run.report()))
                if checkpoint is not None and is_due:
                    run.save(checkpoint)
                if is_read:
                    team.lead(lambda: on_step(run.report()))
                raise_if_held()
        except KeyboardInterrupt as interrupt:
            # One of several processes may save only when all of them have come here.
            all_here = team.size == 1 or isinstance(interrupt, HeldInterrupt)
            if checkpoint is not None and all_here and not stepper.updating:
                run.read_loss(at_once=True)
                run.save(checkpoint)
            raise
    return run.report()


class Run:
    """How far a stepper and its batches have come: steps, loss, time, and their place in a checkpoint."""

    def __init__(self, stepper: Stepper, batches: Batches, settings: dict[str, Any]) -> None:
        self.stepper, self.batches, self.settings = stepper, batches, settings
        self.config = stepper.config
        self.step, self.loss, self.norm, self.tokens_per_step = 0, math.nan, math.nan, 0
        self.frozen: str | None = None
        """A fingerprint of the weights that are not trained, which checkpoints do not hold."""
        self.seconds, self.began = 0.0, time.perf_counter()
        self.read_at, self.steady = 0, (0, 0.0)
        """The step at which the loss was last read; step and seconds of the first time in this process."""

    @property
    def finished(self) -> bool:
        return self.step >= self.config.steps

    def advance(self) -> None:
        batch = self.batches.at(self.step, self.config.batch_size, self.config.seed)
        self.stepper.update(batch, self.step)
        self.tokens_per_step = batch.targets.numel()
        self.step += 1

    def read_loss(self, *, at_once: bool = False) -> bool:
        """Read the loss if it is time to, and note the time it took to get here."""
        passed = self.step - self.read_at
        if not passed or not (at_once or self.step % self.stepper.reads_every == 0):
            return False
        self.stepper.require_finite(self.step - 1)
        value, self.norm = self.stepper.loss.item(), self.stepper.norm.item()
        self.loss = smoothed(self.loss, value, passed)
        now = time.perf_counter()
        self.seconds, self.began, self.read_at = self.seconds + now - self.began, now, self.step
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
        names = ("step", "loss", "norm", "tokens_per_step", "seconds", "settings", "frozen")
        state = {name: getattr(self, name) for name in names}
        tensors = self.stepper.pack()
        self.stepper.team.lead(lambda: checkpoints.save(folder, self.step, tensors, state))

    def restore(self, folder: Path) -> None:
        team = self.stepper.team
        self.frozen = self.stepper.frozen()
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
        self.tokens_per_step, self.seconds, self.read_at = state["tokens_per_step"], state["seconds"], self.step

    def _unpack(self, tensors: checkpoints.Tensors, place: Path) -> None:
        try:
            self.stepper.unpack(tensors)
        except CheckpointError as error:
            raise CheckpointError(f"{place} does not fit: {error}") from error

    def _found(self, folder: Path) -> tuple[checkpoints.Tensors, dict[str, Any]] | None:
        """The newest checkpoint, if it belongs to this run."""
        found = checkpoints.latest(folder)
        if found is None:
            return None
        step, settings = found[1]["step"], found[1]["settings"]
        if unlike := differences(self.settings, settings):
            raise CheckpointError(
                f"the checkpoint in {folder} belongs to another run ({'; '.join(unlike)}); "
                "use its settings, or another folder"
            )
        if self.stepper.team.leads and found[1].get("frozen") != self.frozen:
            raise CheckpointError(
                f"the checkpoint in {folder} changes other weights: those that are not trained are not the ones it was "
                "made with; use the model it was made from, or another folder"
            )
        if step > self.config.steps:
            place = checkpoints.place_of(folder, step)
            raise CheckpointError(
                f"checkpoint {place} is beyond the last step, {self.config.steps}; delete that folder"
            )
        return found


# --- Ctrl-C at a moment of the program's choosing ------------------------------------------------------------------


class HeldInterrupt(KeyboardInterrupt):
    """A Ctrl-C taken when it was asked for; of several processes, all take it at the same step."""


@contextmanager
def interrupts_held(anyone: Callable[[bool], bool] = bool) -> Iterator[Callable[[], None]]:
    """Hold a first Ctrl-C until the yielded function is called; a second one comes through at once.

    ``anyone`` tells whether any of several processes holds one. Only the main thread receives signals, and a
    handler somebody else installed is left alone.
    """
    held = False

    def hold(number: int, frame: FrameType | None) -> None:
        nonlocal held
        if held:
            raise KeyboardInterrupt
        held = True

    def raise_if_held() -> None:
        if anyone(held):
            raise HeldInterrupt

    in_main_thread = threading.current_thread() is threading.main_thread()
    ours = in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, hold)
    try:
        yield raise_if_held
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    raise_if_held()
