"""Tables of runs that may not be whole yet."""

from __future__ import annotations

from typing import Any

from experiments.drawing import style
from experiments.reader import plot


def results(**runs: Any) -> dict[str, Any]:
    variants = {name: {"runs": {"0": run}} for name, run in runs.items()}
    return {"config": {"variants": list(runs), "seeds": 1}, "corpus": {}, "variants": variants}


def cell(f1: float) -> dict[str, float]:
    return {"exact": 0.0, "f1": f1, "seconds": 2.0}


WHOLE = {"answers": {"1": {"0": cell(0.5)}, "20": {"0": cell(0.2), "1": cell(0.6)}}}
BEGUN = {"answers": {"1": {"0": cell(0.25)}, "20": {"0": cell(0.9)}}}


def test_depths_are_taken_together_where_all_are_there() -> None:
    found = results(rope=WHOLE, content=BEGUN)
    assert {count: value.mean for count, value in plot.by_number(found, "rope", "f1").items()} == {1: 50.0, 20: 40.0}
    assert list(plot.by_number(found, "content", "f1")) == [1], "half of the depths would be another number"
    table = plot.number_table(found, "f1")
    assert table is not None
    assert table.head == ["passages", "1", "20"]
    assert [[each.text for each in row] for row in table.rows] == [["rope", "50.0", "40.0"], ["content", "25.0", ""]]
    assert table.rows[0][1].style == "best"


def test_depths_have_a_table_for_every_number_of_passages_that_has_some() -> None:
    (table,) = plot.depth_tables(results(rope=WHOLE, content=BEGUN))
    assert table.head == ["depth", "0", "1"]
    assert [[each.text for each in row] for row in table.rows] == [["rope", "20.0", "60.0"], ["content", "90.0", ""]]


def test_orders_and_figures_are_shown_where_they_are_measured() -> None:
    assert plot.order_table(results(rope=WHOLE)) is None
    orders = {"orders": {"5": {"same": 0.5, "difference": 3e-5}}}
    table = plot.order_table(results(rope=WHOLE | orders, content=BEGUN))
    assert table is not None
    assert [[each.text for each in row] for row in table.rows] == [["rope", "50%", "3.0e-05"]]
    with style():
        (figure,) = plot.figures(results(rope=WHOLE, content=BEGUN))
    assert len(figure.figure.axes[0].lines) >= 2
    assert plot.figures(results(content={"answers": {"1": {"0": cell(0.25)}}})) == [], "a line needs two points"
    assert plot.number_table(results(content={}), "f1") is None
