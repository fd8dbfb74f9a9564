"""Results of the timing experiment with made-up numbers, shaped like those of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.reports.growth.made_up import ENVIRONMENT

CPU = {"device": "cpu", "cpu": "AMD EPYC", "threads": 2, "torch": "2.13.0"}
TIMES: dict[str, dict[str, tuple[float, ...]]] = {
    "0.8M": {"none": (10.0, 11.2, 11.4), "compile": (5.0, 5.2, 5.3), "graphs": (2.0, 2.3, 2.32)},
    "85M": {"none": (40.0, 41.2, 41.6), "compile": (30.0, 30.6, 30.9), "graphs": (29.0, 29.5, 29.9)},
    "302M": {"none": (60.0, 61.0, 61.5), "compile": (50.0, 51.5, 51.6), "graphs": (49.0, 50.0, 50.4)},
    "680M": {"none": (90.0, 91.0, 91.2), "compile": (80.0, 81.0, 81.4), "graphs": (79.0, 80.0, 80.2)},
    "85M at 8,192": {"none": (50.0, 50.9, 51.2), "compile": (40.0, 40.4, 40.8), "graphs": (39.0, 39.4, 39.8)},
}
"""Median milliseconds of rope, content and content with its exponent, by row and acceleration."""
SCHEMES = ("rope", "content", "content:competition=1")
SEQUENCES = {"0.8M": 8, "85M": 4, "302M": 2, "680M": 1, "85M at 8,192": 1}
Times = Mapping[str, Mapping[str, tuple[float | str, ...]]]


def made_timing(median: float, base: float | str, seed: int = 0, peak: int | None = 2**30) -> dict[str, Any]:
    """Steps around the median, the mean above it."""
    found = {
        "steps_ms": [median, 0.99 * median, 1.02 * median],
        "median_ms": median,
        "mean_ms": 1.003 * median,
        "peak_bytes": peak,
        "parameters": 810_049,
    }
    if base != median:
        more = 100 * (median / base - 1) + 0.1 * seed if isinstance(base, float) else None
        found |= {"overhead_percent": more, "overhead_of_means_percent": more}
    return found


def made_run(row: str, times: Mapping[str, tuple[float | str, ...]], seed: int = 0, gpu: bool = True) -> dict[str, Any]:
    """A text in place of a time is why there is none."""
    timings: dict[str, dict[str, Any]] = {}
    for acceleration, values in times.items():
        base = values[0]
        for scheme, value in zip(SCHEMES, values, strict=False):
            peak = (2**30 if scheme == "rope" else 2**30 + 2**26) if gpu else None
            nothing = dict.fromkeys(("steps_ms", "median_ms", "mean_ms", "peak_bytes")) | {"failed": value}
            made = nothing if isinstance(value, str) else made_timing(value, base, seed, peak)
            timings.setdefault(acceleration, {})[scheme] = made
    return {
        "batch": SEQUENCES.get(row, 1),
        "length": int(row.partition(" at ")[2].replace(",", "") or 1024),
        "size": {"dim": 128, "layers": 4, "heads": 4},
        "timings": timings,
        "environment": ENVIRONMENT if gpu else CPU,
    }


def made_results(times: Times | None = None, seeds: int = 1, gpu: bool = True) -> dict[str, Any]:
    times = TIMES if times is None else times
    return {
        "experiment": "timing",
        "preset": "paper",
        "asked": ["--preset", "paper"],
        "config": {
            "variants": list(times),
            "seeds": seeds,
            "schemes": list(SCHEMES[1:]),
            "accelerations": ["none", "compile", "graphs"],
            "backend": "auto",
            "rotary": "compiled",
            "precision": "bf16",
            "timed_steps": 10,
            "warmup_steps": 5,
            "unit_length": 40,
            "vocabulary": 65,
        },
        "corpus": {"name": "random tokens", "symbols": 65, "unit_length": 40},
        "environment": ENVIRONMENT if gpu else CPU,
        "seconds": 321.0,
        "variants": {
            row: {"runs": {str(seed): made_run(row, by, seed, gpu) for seed in range(seeds)}}
            for row, by in times.items()
        },
    }
