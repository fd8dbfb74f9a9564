"""Timing two things against each other in one run: alternately, so that drift of the machine hits both alike."""

from __future__ import annotations

import argparse
import operator
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from contentrope.errors import InputError
from contentrope.outputs import require_result


class Work(NamedTuple):
    """What is timed, step by step, and what puts things back after the last one, untimed."""

    steps: Sequence[Callable[[], object]]
    reset: Callable[[], object] = lambda: None

    def run(self) -> None:
        for step in self.steps:
            step()


def paired_seconds(ours: Work, baseline: Work, *, repeats: int, warmup: int = 2) -> dict[str, float]:
    """Of all steps together: what both take, their ratio, and the quartiles of the ratios of single repeats.

    The steps of both take turns, and now one begins, now the other: what slows a machine for longer than a step slows
    both. What slows single steps is left out by medians over the repeats, step by step; a step that has more to do than
    others, such as completing a unit, keeps its weight.
    """
    rounds = [_round(ours, baseline, number) for number in range(warmup + repeats)][warmup:]
    steps = list(zip(*rounds, strict=True))  # by step, the pairs of all rounds
    plain = [statistics.median(b for _, b in pairs) for pairs in steps]
    ratios = [statistics.median(a / b for a, b in pairs) for pairs in steps]
    by_round = sorted(sum(a for a, _ in pairs) / sum(b for _, b in pairs) for pairs in rounds)
    return {
        "ours_seconds": sum(statistics.median(a for a, _ in pairs) for pairs in steps),
        "baseline_seconds": sum(plain),
        "ratio": sum(map(operator.mul, ratios, plain)) / sum(plain),
        "ratio_low": by_round[len(by_round) // 4],
        "ratio_high": by_round[-1 - len(by_round) // 4],
        "repeats": repeats,
    }


def _round(ours: Work, baseline: Work, number: int) -> list[tuple[float, float]]:
    """The seconds of every step, of ours and of the baseline."""
    pairs = []
    for index, (our_step, plain_step) in enumerate(zip(ours.steps, baseline.steps, strict=True)):
        if (number + index) % 2:
            plain = _seconds(plain_step)
            pairs.append((_seconds(our_step), plain))
        else:
            pairs.append((_seconds(our_step), _seconds(plain_step)))
    ours.reset()
    baseline.reset()
    return pairs


def _seconds(step: Callable[[], object]) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def busy_seconds(ours: Work, baseline: Work) -> dict[str, float]:
    """What a GPU itself works on both, its kernels summed up: the time may be that of the Python that calls them."""
    ours_busy, baseline_busy = _busy(ours), _busy(baseline)
    if not (ours_busy and baseline_busy):
        print("the profiler saw no kernels: how long they work is left out", flush=True)
        return {}
    ratio = ours_busy / baseline_busy
    return {"ours_busy_seconds": ours_busy, "baseline_busy_seconds": baseline_busy, "busy_ratio": ratio}


def _busy(work: Work) -> float:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
        work.run()
        torch.cuda.synchronize()
    work.reset()
    return sum(kernel.self_device_time_total for kernel in profiled.key_averages()) / 1e6


def positive(text: str) -> int:
    """An argument that must be a whole number of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def result_file(text: str) -> Path:
    """Where a benchmark writes to: over a benchmark's result, and over nothing else."""
    try:
        require_result(Path(text), lambda found: {"config", "environment", "results"} <= found.keys())
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return Path(text)
