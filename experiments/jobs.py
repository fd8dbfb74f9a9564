"""Variants one after the other, or several at a time in processes of their own.

Beside each other pays on a GPU: while one variant compiles on the CPU, another trains.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from contentrope.errors import InputError
from contentrope.files import Record, kept_by
from contentrope.training import DivergedError
from contentrope.training.loop import interrupts_held
from experiments.experiment import Experiment, Finished, Measured, Tell

OF_ONE_VARIANT = (DivergedError, torch.OutOfMemoryError, InputError)
"""Failures that need not concern the other variants, such as weights that have become NaN: the others run on, and
the failures are raised in the end."""


def command_of(experiment: Experiment) -> str:
    """Its name in the record of an output folder, there as long as the experiment."""
    return f"reproduce {experiment.name}"


def measure_all(
    experiment: Experiment, missing: dict[str, list[int]], out: Path, device: str, tell: Tell, jobs: int
) -> None:
    """Measure the seeds of every variant in ``missing``, ``jobs`` variants at a time."""
    failures: dict[str, BaseException] = {}
    if jobs == 1 or len(missing) < 2:
        for variant, seeds in missing.items():
            try:
                experiment.measure(variant, seeds, out, device, tell)
            except OF_ONE_VARIANT as error:
                failures[variant] = error
    else:
        failures = _measure_beside(experiment, missing, out, device, tell, min(jobs, len(missing)))
    for variant, failure in failures.items():
        others = ", ".join(other for other in failures if other != variant)
        raise type(failure)(f"{variant}: {failure}" + (f"; also failed: {others}" if others else "")) from failure


def _measure_beside(
    experiment: Experiment, missing: dict[str, list[int]], out: Path, device: str, tell: Tell, jobs: int
) -> dict[str, BaseException]:
    """Measure in ``jobs`` processes; the failures that concern one variant only."""
    context = multiprocessing.get_context("spawn")
    told, stop = context.SimpleQueue(), context.Event()
    threads = max(1, torch.get_num_threads() // jobs)
    with ProcessPoolExecutor(jobs, context, _begin_process, (told, stop, threads)) as pool, interrupts_held() as check:
        futures = {
            variant: pool.submit(_measure_apart, experiment, variant, seeds, out, device)
            for variant, seeds in missing.items()
        }
        try:
            while _pass_on(futures, told, tell):
                check()
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            while _pass_on(futures, told, tell, stopping=True):  # what finishes now is not lost
                pass
            raise
    failed = {variant: future.exception() for variant, future in futures.items()}
    return {variant: failure for variant, failure in failed.items() if failure is not None}


def _pass_on(futures: dict[str, Future[None]], told: Any, tell: Tell, *, stopping: bool = False) -> bool:
    """Hand on what the processes told; True while some are at work. The first failure of all is raised."""
    running = not all(future.done() for future in futures.values())
    while not told.empty():
        tell(told.get())
    for future in futures.values():
        failure = future.exception() if not stopping and future.done() else None
        if failure is not None and not isinstance(failure, OF_ONE_VARIANT):
            raise failure
    if running:
        time.sleep(0.05)
    return running


class _Process:
    """What a process of the pool was given when it began."""

    told: Any
    stop: Any


def _begin_process(told: Any, stop: Any, threads: int) -> None:
    _Process.told, _Process.stop = told, stop
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, _let_one_pass)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """When the process that holds the output folder is killed, another command may take it: nobody else writes then."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _let_one_pass(number: int, frame: FrameType | None) -> None:
    """A first Ctrl-C is for the process that started this one, which says when to stop; a second one ends it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _measure_apart(experiment: Experiment, variant: str, seeds: list[int], out: Path, device: str) -> None:
    def tell(event: Any) -> None:
        if _Process.stop.is_set() and not isinstance(event, Measured | Finished):
            raise KeyboardInterrupt  # training saves where it is
        _Process.told.put(event)

    with kept_by(Record(out, command_of(experiment))):
        experiment.measure(variant, seeds, out, device, tell)
