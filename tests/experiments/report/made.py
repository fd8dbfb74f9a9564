"""Small results with made-up numbers, shaped like those of the experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MACHINE = {"device": "NVIDIA H200", "torch": "2.11.0", "git": "0" * 40, "time": "2026-11-18T00:00:00+00:00"}
Number = float | None


def growth(
    curves: Mapping[str, Sequence[Mapping[int, Number]]], length: int = 8, corpus: str = "stdlib"
) -> dict[str, Any]:
    """By variant and seed: perplexity by length."""
    by_variant = {
        name: [{"perplexity": {str(n): value for n, value in curve.items()}} for curve in by_seed]
        for name, by_seed in curves.items()
    }
    return _results("growth", by_variant, {"length": length}, {"name": corpus})


def retrofit(curves: Mapping[str, Sequence[Mapping[int, Number]]]) -> dict[str, Any]:
    return growth(curves) | {"experiment": "retrofit"}


def facts(hits: Mapping[str, Sequence[Mapping[str, Number]]], **parts: Any) -> dict[str, Any]:
    """By variant and seed: hit@5 by row; on the paper's task."""
    by_variant = {
        name: [
            {"rows": {row: {"hit5": hit, "perplexity": 2.0, "examples": 10} for row, hit in rows.items()}, **parts}
            for rows in by_seed
        ]
        for name, by_seed in hits.items()
    }
    corpus = {"name": "facts", "names": 3000, "test_names": 100}
    return _results("facts", by_variant, {"facts": [1, 1], "distractors": 4}, corpus)


def timing(times: Mapping[str, Mapping[str, Number]], device: str = "NVIDIA H200") -> dict[str, Any]:
    """By size and scheme: milliseconds, None for what ran out of memory."""
    by_variant = {}
    for size, by_scheme in times.items():
        base = by_scheme["rope"]
        timings = {}
        for scheme, time in by_scheme.items():
            numbers = dict.fromkeys(("steps_ms", "median_ms", "mean_ms", "peak_bytes"), None)
            timings[scheme] = numbers | {"failed": "CUDA out of memory"}
            if time is not None and base is not None:
                timings[scheme] = {"steps_ms": [time], "median_ms": time, "mean_ms": time, "peak_bytes": 2**30}
                timings[scheme] |= {"overhead_percent": 100 * (time / base - 1)} if scheme != "rope" else {}
        run = {"batch": 2, "length": 1024, "timings": {"none": timings}, "environment": {"device": device}}
        by_variant[size] = [run]
    return _results("timing", by_variant, {"schemes": ["content"]}, {"name": "random tokens"})


def _results(
    experiment: str, by_variant: Mapping[str, Sequence[Any]], config: Mapping[str, Any], corpus: Mapping[str, Any]
) -> dict[str, Any]:
    most = max((len(by_seed) for by_seed in by_variant.values()), default=0)
    return {
        "experiment": experiment,
        "preset": "quick",
        "config": {"variants": list(by_variant), "seeds": most, **config},
        "corpus": corpus,
        "environment": MACHINE,
        "variants": {
            name: {"runs": {str(seed): run for seed, run in enumerate(by_seed)}} for name, by_seed in by_variant.items()
        },
    }
