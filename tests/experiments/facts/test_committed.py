"""What the committed results of trained models must show, whatever else changes in them."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


def order_by_variant() -> dict[str, list[dict[str, Any]]]:
    results = json.loads((ROOT / "results" / "facts-beyond.json").read_text())
    return {name: [run["order"] for run in found["runs"].values()] for name, found in results["variants"].items()}


def test_trained_memory_units_are_read_in_any_order() -> None:
    found = [order for name, runs in order_by_variant().items() if "memory=true" in name for order in runs]
    assert len(found) >= 3, "three seeds"
    for order in found:
        assert order["examples"] * order["permutations"] >= 800
        assert order["answers_changed"] == 0
        assert order["largest_change"] < 1e-4, "rounding in float32"
        assert order.get("largest_change_float64", 0) < 1e-10, "older results do not have it"


def test_trained_rope_is_not() -> None:
    assert min(order["answers_changed"] for order in order_by_variant()["rope"]) > 0.1
