"""Results of retrieval from facts with made-up numbers, shaped like those of an experiment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

from tests.reports.growth.made_up import ENVIRONMENT

ROWS = [
    ", ".join(parts)
    for parts in product(("single fact", "same entities", "same relation"), ("chain2", "chain3"), ("train", "test"))
]
WEAK, STRONG = "alibi:slopes=[0.00390625]", "alibi:slopes=[0.25]"
MEMORY = "content:competition=1 + memory"
HITS: dict[str, Sequence[float | None]] = {
    "content": (0.99, 0.91, 0.98, 0.82, 0.99, 0.95, 0.97, 0.86, 0.68, 0.55, 0.35, 0.21),
    "content:competition=1": (0.99, 0.93, 0.99, 0.86, 0.99, 0.97, 0.98, 0.90, 0.88, 0.80, 0.62, 0.50),
    MEMORY: (0.98, 0.94, 0.98, 0.88, 0.99, 0.96, 0.98, 0.92, 0.92, 0.86, 0.70, 0.61),
    "random": (0.99, 0.90, 0.97, 0.80, 0.98, 0.93, 0.90, 0.75, 0.45, 0.33, 0.20, 0.10),
    "local": (0.98, 0.89, 0.96, 0.78, 0.90, 0.85, 0.70, 0.55, 0.25, 0.18, 0.05, 0.02),
    "rope": (0.99, 0.92, 0.95, 0.74, 0.99, 0.95, 0.71, 0.61, 0.33, 0.22, 0.05, 0.02),
    "bipe": (0.99, 0.91, 0.96, 0.75, 0.98, 0.94, 0.74, 0.64, 0.36, 0.24, 0.07, 0.03),
    WEAK: (0.12, 0.03, 0.01, 0.00, 0.26, 0.11, 0.02, 0.00, 0.03, 0.01, 0.00, 0.00),
    STRONG: (0.95, 0.64, 0.82, 0.37, 0.86, 0.62, 0.50, 0.24, 0.04, 0.02, 0.00, 0.00),
}
DOMAINS = (
    ("great-grandson", "grandson", "son", "father", "grandfather", "great-grandfather"),
    ("intern", "assistant", "engineer", "manager", "director", "president"),
    ("private", "corporal", "sergeant", "lieutenant", "captain", "general"),
    ("pupil", "prefect", "tutor", "teacher", "principal", "inspector"),
    ("acolyte", "deacon", "priest", "bishop", "archbishop", "cardinal"),
)


def made_run(hits: Sequence[float | None], seed: int = 0) -> dict[str, Any]:
    """A run whose hit@5 moves a little with the seed; a row without a number is missing."""
    moved = [None if hit is None else hit * (1 - 0.01 * seed) for hit in hits]
    return {
        "rows": {
            row: {"hit5": hit, "perplexity": 1 + 8 * (1 - hit), "examples": 1000}
            for row, hit in zip(ROWS, moved, strict=True)
            if hit is not None
        },
        "final_loss": 0.8 + 0.01 * seed,
        "training_seconds": 612.3 + seed,
        "steps_per_second": 163.0 - seed,
        "evaluation_seconds": 31.0,
        "parameters": 121_561,
        "model": {"dim": 60, "layers": 3, "heads": 1},
        "environment": ENVIRONMENT,
    }


def made_results(hits: dict[str, Sequence[float | None]] | None = None, seeds: int = 3) -> dict[str, Any]:
    hits = dict(HITS) if hits is None else hits
    return {
        "experiment": "facts",
        "preset": "paper",
        "asked": ["--preset", "paper"],
        "config": {
            "variants": list(hits),
            "seeds": seeds,
            "layout": "end",
            "facts": [1, 1],
            "examples": 1000,
            "distractors": 4,
            "scaling": [],
            "model": {"dim": 60, "layers": 3, "heads": 1},
            "training": {
                "steps": 100_000,
                "batch_size": 32,
                "learning_rate": 5e-4,
                "schedule": "constant",
                "weight_decay": 0.01,
                "precision": "tf32",
            },
        },
        "corpus": {
            "name": "facts",
            "names": 3000,
            "test_names": 100,
            "facts": 134_935,
            "sentences": 6_116_520,
            "seed": 0,
            "layout": "end",
        },
        "environment": ENVIRONMENT,
        "seconds": 1234.5,
        "variants": {
            name: {"runs": {str(seed): made_run(values, seed) for seed in range(seeds)}}
            for name, values in hits.items()
        },
    }


def with_details(results: dict[str, Any]) -> dict[str, Any]:
    """Adds all that is optional: to every run, or to the first run of the first variant."""
    results["config"]["scaling"] = [4, 16, 64, 256]
    for name, entry in results["variants"].items():
        for seed, run in entry["runs"].items():
            start = run["rows"]["same relation, chain2, test"]["hit5"]
            run["scaling"] = made_scaling({4: start, 16: start**1.3, 64: start**2, 256: start**4})
            run["order"] = made_order(0.0 if "memory" in name else 0.3 + 0.01 * int(seed))
            if not name.startswith(("rope", "alibi", "bipe")):
                run["exponents"] = {"0.5": run["rows"], "2": run["rows"]}
            pace = 300 * (1 + len(name)) / 10
            run["losses"] = [[step, 0.6 + 2.6 * math.exp(-step / (10 * pace))] for step in range(1000, 100_001, 1000)]
    first = next(iter(results["variants"].values()))["runs"]["0"]
    first |= {"inside": made_inside(), "addresses": made_addresses()}
    return results


def made_scaling(hits: dict[int, float]) -> dict[str, Any]:
    score = {"perplexity": 2.0, "examples": 500}
    return {str(n): {"chain2": score | {"hit5": hit}, "chain3": score | {"hit5": hit / 2}} for n, hit in hits.items()}


def made_order(changed: float, largest: float | None = None) -> dict[str, Any]:
    moved = (1.25 if changed else 3.1e-6) if largest is None else largest
    return {"examples": 200, "permutations": 4, "answers_changed": changed, "largest_change": moved}


def made_inside(layers: int = 3) -> dict[str, Any]:
    texts = [
        "<son> carl <father> erwin;",
        "<father> olga <son> quentin;",
        "<son> adam <father> brian;",
        "<great-grandson> sebastia <grandson> maximili;",
        "<father> ida <son> jo;",
        "| if adam is the son, the father is brian.",
    ]
    tokens = [sign for text in texts for sign in text]
    units = [place for place, text in enumerate(texts) for _ in text]
    scored = list(range(len(tokens) - len("brian."), len(tokens) - 1))
    attention = [
        [_shares(len(texts), asked=(layer + 1) / (layers + 1) * (1 - 0.08 * place)) for place in range(len(scored))]
        for layer in range(layers)
    ]
    return {
        "tokens": tokens, "units": units, "unit_texts": texts, "asked": 2, "scored": scored, "attention": attention,
    }  # fmt: skip


def _shares(units: int, asked: float) -> list[float]:
    rest = (1 - asked) / (2 * (units - 2))
    return [asked if place == 2 else (1 - asked) / 2 if place == units - 1 else rest for place in range(units)]


def made_addresses(domains: int = 5, sizes: Sequence[int] = (2, 3), facts: int = 8) -> dict[str, Any]:
    """Clusters on circles, one a relation."""
    relations = [
        ", ".join(roles[start : start + size])
        for size in sizes
        for roles in DOMAINS[:domains]
        for start in range(len(roles) - size + 1)
    ]
    points = []
    for place in range(len(relations)):
        angle, radius = 2.4 * place, 1 + 4 * (place / len(relations)) ** 0.5
        points += [
            [radius * math.cos(angle) + 0.25 * math.cos(7 * fact), radius * math.sin(angle) + 0.25 * math.sin(5 * fact)]
            for fact in range(facts)
        ]
    named = [relation for relation in relations for _ in range(facts)]
    return {"points": points, "relations": named, "explained": [0.41, 0.22]}
