"""Tables of runs that may not be whole yet."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.open_model import plot


def results(**runs: Any) -> dict[str, Any]:
    variants = {name: {"runs": {"0": run}} for name, run in runs.items()}
    return {
        "config": {"variants": list(runs), "seeds": 1, "length": 8},
        "corpus": {"name": "books"},
        "variants": variants,
    }


ASKED = {"niah_single_1": {"8": 1.0, "16": 0.5}, "niah_multiquery": {"8": 0.5, "16": 0.0}, "vt": {"8": 0.0}}


def test_needle_tasks_are_taken_together_and_no_others() -> None:
    found = plot.needles(results(rope={"tasks": ASKED}), "rope")
    assert {size: value.mean for size, value in found.items()} == {8: 0.75, 16: 0.25}


def test_a_variant_with_fewer_tasks_says_so() -> None:
    table = plot.needle_table(results(rope={"tasks": ASKED}, pi={"tasks": {"niah_single_1": {"8": 0.25}}}))
    assert table is not None
    assert table.head == ["", "needle tasks", "8", "16"]
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["rope", "2", "0.75", "0.25"],
        ["pi", "1", "0.25", ""],
    ]
    assert table.rows[0][2].style == "best"


def test_lists_have_a_table_of_their_own() -> None:
    mixed = results(rope={"tasks": {"kv_75": {"75": 0.5}, "kv_1000": {"1000": 0.25}, "kv": {"8": 1.0}}})
    table = plot.list_table(mixed)
    assert table is not None
    assert table.head == ["", "75 keys", "1,000 keys"]
    (by_length,) = plot.task_tables(mixed)
    assert by_length.head == ["", "kv"]


@pytest.mark.parametrize("run", [{}, {"tasks": ASKED}, {"short": {"contained": 1.0}}, {"perplexity": {"8": 2.0}}])
def test_a_run_that_has_only_begun_makes_tables(run: dict[str, Any]) -> None:
    tables = plot.tables(results(rope=run))
    assert any(row[0].text == "rope" for table in tables for row in table.rows)
    plot.figures(results(rope=run))
