"""Results with made-up numbers, shaped like those of the retrofit experiment."""

from __future__ import annotations

from typing import Any

from tests.reports.growth.made_up import ENVIRONMENT, LENGTHS, made_run

CURVES = {
    "untouched": (4.00, 6.00, 16.0, 35.0, 60.0),
    "content:positions=gated": (4.10, 4.07, 4.05, 4.05, 4.06),
    "content:train=addresses": (4.30, 4.28, 4.27, 4.27, 4.28),
    "pi:factor=16": (4.20, 5.00, 9.00, 12.0, 20.0),
    "yarn:factor=16": (4.05, 4.20, 4.50, 4.90, 5.40),
}


def made_results(
    curves: dict[str, tuple[float | None, ...]] | None = None, seeds: int = 2, lengths: tuple[int, ...] = LENGTHS
) -> dict[str, Any]:
    curves = dict(CURVES) if curves is None else curves
    training = {"steps": 500, "batch_size": 64, "learning_rate": 5e-4, "precision": "bf16"}
    return {
        "experiment": "retrofit",
        "preset": "paper",
        "config": {
            "variants": list(curves),
            "seeds": seeds,
            "model": None,
            "text": ["shakespeare"],
            "units": "line",
            "length": 256,
            "times": [1, 2, 4, 8, 16],
            "size": {"dim": 256, "layers": 4, "heads": 8, "dropout": 0.2},
            "pretraining": {"steps": 5000, "batch_size": 64, "learning_rate": 1e-3},
            "training": training,
        },
        "corpus": {"name": "shakespeare", "characters": 1_000_000, "sha256": "86c4e6aa9db7", "training": 900_000},
        "environment": ENVIRONMENT,
        "variants": {
            name: {"runs": {str(seed): made_run(values, seed, lengths) for seed in range(seeds)}}
            for name, values in curves.items()
        },
    }
