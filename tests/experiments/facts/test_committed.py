"""What the committed results of trained models must show, whatever else changes in them."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


def found_by_variant(what: str, file: str = "facts-beyond") -> dict[str, list[dict[str, Any]]]:
    results = json.loads((ROOT / "results" / f"{file}.json").read_text())
    return {name: [run[what] for run in found["runs"].values()] for name, found in results["variants"].items()}


def order_by_variant() -> dict[str, list[dict[str, Any]]]:
    return found_by_variant("order")


def test_content_copies_with_every_seed_of_the_quick_run_and_rope_with_one() -> None:
    rows = found_by_variant("rows", "facts-quick")
    single = {name: [run["single fact, chain2, test"]["hit5"] for run in runs] for name, runs in rows.items()}
    assert len(single["content:competition=1"]) == len(single["rope"]) == 3
    assert min(single["content:competition=1"]) > 0.95
    assert [hit > 0.95 for hit in single["rope"]].count(True) == 1


def test_content_chooses_among_more_facts_than_it_was_trained_on() -> None:
    """Every seed, with and without memory units; positions that go on counting do not."""
    scaling = found_by_variant("scaling")
    content = [run for name, runs in scaling.items() if name.startswith("content") for run in runs]
    assert len(content) >= 6
    assert min(run["4"]["chain2"]["hit5"] for run in content) >= 0.95
    assert min(run["4"]["chain3"]["hit5"] for run in content) >= 0.90
    assert min(run["64"]["chain2"]["hit5"] for run in content) >= 0.90
    assert max(run["64"]["chain2"]["hit5"] for name in ("rope", "bipe") for run in scaling[name]) < 0.10


def test_trained_memory_units_are_read_in_any_order() -> None:
    found = [order for name, runs in order_by_variant().items() if "memory=true" in name for order in runs]
    assert len(found) >= 3, "three seeds"
    for order in found:
        assert order["examples"] * order["permutations"] >= 800
        assert order["answers_changed"] == 0
        assert order["largest_change"] < 1e-4, "rounding in float32"
        assert order["largest_change_float64"] < 1e-10


def test_trained_rope_is_not() -> None:
    assert min(order["answers_changed"] for order in order_by_variant()["rope"]) > 0.1
