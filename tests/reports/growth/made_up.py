"""Results with made-up numbers, shaped like those of an experiment."""

from __future__ import annotations

from typing import Any

LENGTHS = (256, 512, 1024, 2048, 4096)
EDGES = [0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
CURVES = {
    "content": (4.40, 4.37, 4.41, 4.54, 4.89),
    "content:competition=1": (4.39, 4.36, 4.35, 4.34, 4.33),
    "random": (4.41, 4.40, 4.40, 4.44, 4.47),
    "alibi": (4.62, 4.58, 4.55, 4.53, 4.53),
    "rope": (4.30, 6.16, 16.5, 39.3, 70.8),
    "rope:frequencies=model_wide": (4.36, 5.80, 9.40, 14.2, 20.0),
    "local": (4.52, 5.15, 10.4, 20.0, 29.5),
}
ENVIRONMENT = {
    "contentrope": "0.1.0",
    "torch": "2.13.0",
    "python": "3.11.2",
    "device": "NVIDIA H200",
    "cpu": "AMD EPYC",
    "threads": 16,
    "git": "4f6b60ae04b51c22e391c8f6ff95c9b729101b3f-dirty",
    "time": "2026-01-02T03:04:05+00:00",
}


def made_run(values: tuple[float | None, ...], seed: int = 0, lengths: tuple[int, ...] = LENGTHS) -> dict[str, Any]:
    """A run whose perplexities move a little with the seed."""
    moved = [None if value is None else value * (1 + 0.004 * seed) for value in values]
    return {
        "perplexity": dict(zip(map(str, lengths), moved, strict=True)),
        "final_loss": 1.2 + 0.01 * seed,
        "training_seconds": 12.3 + seed,
        "steps_per_second": 420.0 - seed,
        "evaluation_seconds": 3.1,
        "parameters": 818_561,
        "model": {"dim": 128, "layers": 4, "heads": 4},
        "environment": ENVIRONMENT,
    }


def made_results(
    curves: dict[str, tuple[float | None, ...]] | None = None,
    seeds: int = 3,
    lengths: tuple[int, ...] = LENGTHS,
) -> dict[str, Any]:
    curves = dict(CURVES) if curves is None else curves
    variants = {
        name: {"runs": {str(seed): made_run(values, seed, lengths) for seed in range(seeds)}}
        for name, values in curves.items()
    }
    training = {"steps": 5000, "batch_size": 32, "learning_rate": 1e-3, "precision": "tf32"}
    return {
        "experiment": "shakespeare",
        "preset": "paper",
        "config": {
            "variants": list(curves),
            "seeds": list(range(seeds)),
            "lengths": list(lengths),
            "length": 256,
            "once": [],
            "model": {"dim": 128, "layers": 4, "heads": 4, "dropout": 0.0},
            "training": training,
        },
        "corpus": {
            "name": "shakespeare",
            "characters": 1_000_000,
            "sha256": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            "symbols": 65,
            "training": 900_000,
            "held_out": 100_000,
        },
        "environment": ENVIRONMENT,
        "variants": variants,
    }


def with_details(results: dict[str, Any], deleted: float = 4.25) -> dict[str, Any]:
    """Adds perplexity by position and the use of distant text to every run."""
    for entry in results["variants"].values():
        for seed, run in entry["runs"].items():
            shift = 0.001 * int(seed)
            falling = [9.0, 5.2, 4.8, 4.6, 4.5, 4.45, 4.42, 4.4, 4.39]
            run["by_position"] = {"length": 4096, "edges": EDGES, "perplexity": [value + shift for value in falling]}
            changed = {"as written": 4.2 + shift, "shuffled": 4.21 + shift, "deleted": deleted + shift, "replaced": 4.3}
            run["distant"] = {"length": 4096, "near": 512, "scored": 12345, "perplexity": changed}
    return results
