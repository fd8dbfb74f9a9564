"""What every process of test_processes.py runs. Each scenario leaves its outcome in ``results-<rank>.json``.

The scenarios run one after the other in the same processes: one that left a process waiting would stop the rest.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contentrope import ModelConfig, Transformer
from contentrope.training import IGNORED, Batch, MetricsLog, Stepper, TrainConfig, Windows, stepper_for, train
from contentrope.training import checkpoint as checkpoints

CONFIG = TrainConfig(steps=6, batch_size=8, learning_rate=1e-2, warmup=2, accumulate=2, seed=5)
RANK = int(os.environ.get("RANK", "0"))


class UnevenBatches:
    """Few targets in the first half of the rows, none in the first rows; ``at_step`` is told of every step."""

    def __init__(self, at_step: Callable[[int], None] = lambda step: None) -> None:
        self.windows = Windows(torch.arange(400) * 7919 % 11, length=7)
        self.at_step = at_step

    def at(self, step: int, rows: int, seed: int) -> Batch:
        self.at_step(step)
        batch = self.windows.at(step, rows, seed)
        targets = batch.targets.clone()  # they share memory with the inputs
        targets[: rows // 2, 2:] = IGNORED
        targets[: rows // 4] = IGNORED
        return Batch(batch.inputs, targets)


def small_model(seed: int = 1, dropout: float = 0.0) -> Transformer:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        settings = ModelConfig(
            vocab_size=11, dim=8, layers=2, heads=2, scheme="content", terminators=(0,), dropout=dropout
        )
        return Transformer(settings).double()


def new_stepper(config: TrainConfig = CONFIG, dropout: float = 0.0) -> Stepper:
    # Other weights in every process: those of the first must win.
    return stepper_for(small_model(seed=1 + RANK, dropout=dropout), config)


def whole_run(folder: Path) -> dict[str, Any]:
    reports: list[list[float]] = []
    with MetricsLog(folder / "whole", every=1) as metrics:
        train(
            new_stepper(),
            UnevenBatches(),
            checkpoint=folder / "whole",
            on_step=lambda report: reports.append([report.loss, report.norm]),
            metrics=metrics,
        )
    return {"reports": reports}


def resumed_run(folder: Path) -> dict[str, Any]:
    """The folder holds a checkpoint that one process has written."""
    stepper = new_stepper()
    report = train(stepper, UnevenBatches(), checkpoint=folder / "from_one")
    return {"kind": type(stepper.called).__name__, "step": report.step, "loss": report.loss}


def restarted_run(folder: Path) -> dict[str, Any]:
    stepper = new_stepper()
    train(stepper, UnevenBatches())
    stepper.restart(CONFIG.seed, small_model(seed=1).state_dict())
    return {"loss": train(stepper, UnevenBatches()).loss}


def interrupted_run(folder: Path) -> dict[str, Any]:
    def press_ctrl_c_in_one(step: int) -> None:
        if step == 2 and RANK == 1:
            signal.raise_signal(signal.SIGINT)

    return failure(lambda: train(new_stepper(), UnevenBatches(press_ctrl_c_in_one), checkpoint=folder / "interrupted"))


def train_until_one_is_poisoned(folder: Path) -> None:
    stepper, poisoned = new_stepper(), [False]

    def poison(step: int) -> None:
        poisoned[0] = step == 2 and RANK == 1

    def nan_if_poisoned(module: object, inputs: object, logits: Tensor) -> Tensor:
        return logits * torch.nan if poisoned[0] else logits

    stepper.model.head.register_forward_hook(nan_if_poisoned)
    train(stepper, UnevenBatches(poison), checkpoint=folder / "poisoned", save_every=1)


def poisoned_run(folder: Path) -> dict[str, Any]:
    return failure(lambda: train_until_one_is_poisoned(folder))


def full_disk_run(folder: Path) -> dict[str, Any]:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    save, checkpoints.save = checkpoints.save, fail
    try:
        return failure(lambda: train(new_stepper(), UnevenBatches(), checkpoint=folder / "full"))
    finally:
        checkpoints.save = save


def failing_display_run(folder: Path) -> dict[str, Any]:
    def fail(report: object) -> None:
        raise ValueError("no display")

    return failure(lambda: train(new_stepper(), UnevenBatches(), on_step=fail))


def dropout_run(folder: Path) -> dict[str, Any]:
    seeds: list[int] = []
    stepper = new_stepper(replace(CONFIG, steps=2, warmup=0), dropout=0.5)
    stepper.model.head.register_forward_hook(lambda *_: seeds.append(torch.initial_seed()))
    train(stepper, UnevenBatches())
    return {"seeds": seeds}


def exchanging_run(folder: Path) -> dict[str, Any]:
    exchanged: list[bool | None] = []
    stepper = new_stepper(replace(CONFIG, steps=1, warmup=0))
    stepper.model.head.register_forward_hook(
        lambda *_: exchanged.append(getattr(stepper.called, "require_backward_grad_sync", None))
    )
    train(stepper, UnevenBatches())
    return {"exchanged": exchanged}


def refused_settings(folder: Path) -> dict[str, Any]:
    return {
        "rows": failure(lambda: new_stepper(replace(CONFIG, batch_size=6)))["message"],
        "graphs": failure(lambda: new_stepper(replace(CONFIG, acceleration="graphs")))["message"],
        "auto": new_stepper().acceleration,
    }


def one_without_the_checkpoint(folder: Path) -> dict[str, Any]:
    """A folder that is not shared: one process has been here before, the other has not."""
    mine = folder / ("from_one" if RANK == 0 else "elsewhere")
    return failure(lambda: train(new_stepper(), UnevenBatches(), checkpoint=mine))


def wait_for_ctrl_c(folder: Path) -> None:
    def tell_and_wait(step: int) -> None:
        (folder / f"waiting-{RANK}").touch()
        time.sleep(0.02)

    stepper = new_stepper(replace(CONFIG, steps=5000))
    outcome = failure(lambda: train(stepper, UnevenBatches(tell_and_wait), checkpoint=folder / "ctrl_c"))
    (folder / f"ctrl-c-{RANK}.json").write_text(json.dumps(outcome))


def failure(action: Callable[[], object]) -> dict[str, Any]:
    try:
        action()
    except (Exception, KeyboardInterrupt) as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {"error": None, "message": ""}


SCENARIOS = (
    one_without_the_checkpoint,
    whole_run,
    resumed_run,
    restarted_run,
    interrupted_run,
    poisoned_run,
    full_disk_run,
    failing_display_run,
    dropout_run,
    exchanging_run,
    refused_settings,
)
ENDINGS = {"poison": train_until_one_is_poisoned, "ctrl_c": wait_for_ctrl_c}


def main(folder: Path, ending: str) -> None:
    # A launcher started in the background hands down an ignored Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    results = {scenario.__name__: scenario(folder) for scenario in SCENARIOS}
    (folder / f"results-{RANK}.json").write_text(json.dumps(results))
    ENDINGS[ending](folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
