"""Timing two things against each other in one run: alternately, so that drift of the machine hits both alike."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch


class Work(NamedTuple):
    """What is timed, and what puts things back afterwards, untimed."""

    run: Callable[[], object]
    reset: Callable[[], object] = lambda: None


def paired_seconds(ours: Work, baseline: Work, *, repeats: int, warmup: int = 2) -> dict[str, float]:
    """Medians of both, and the median and quartiles of the ratios of neighbouring runs."""
    pairs = [(_seconds(ours), _seconds(baseline)) for _ in range(warmup + repeats)][warmup:]
    ratios = sorted(a / b for a, b in pairs)
    return {
        "ours_seconds": statistics.median(a for a, _ in pairs),
        "baseline_seconds": statistics.median(b for _, b in pairs),
        "ratio": statistics.median(ratios),
        "ratio_low": ratios[len(ratios) // 4],
        "ratio_high": ratios[-1 - len(ratios) // 4],
        "repeats": repeats,
    }


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


def _seconds(work: Work) -> float:
    begin = time.perf_counter()
    work.run()
    elapsed = time.perf_counter() - begin
    work.reset()
    return elapsed


def positive(text: str) -> int:
    """An argument that must be a whole number of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)
