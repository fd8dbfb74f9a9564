"""The tables: what stands in which cell."""

from __future__ import annotations

from contentrope.reports.tables import Cell, Table
from contentrope.reports.timing import main_tables
from contentrope.reports.timing.paper import TABLE, TARGETS
from contentrope.reports.timing.tables import all_measurements, overhead_table
from tests.reports.timing.made_up import TIMES, Times, made_results


def cells(table: Table, row: str) -> dict[str, Cell]:
    line = next(line for line in table.rows if line[0].text == row)
    return dict(zip(table.head, line, strict=True))


def one_row(*times: float | str) -> Times:
    return {"85M": {"none": times}}


def test_a_table_for_each_acceleration() -> None:
    titles = [title for title, _ in main_tables(made_results())]
    assert titles == [
        "Eager: milliseconds a training step",
        "Compiled: milliseconds a training step",
        "Compiled, the step one CUDA graph: milliseconds a training step",
    ]
    assert [[line[0].text for line in table.rows] for _, table in main_tables(made_results())] == [list(TIMES)] * 3


def test_times_overheads_the_paper_the_target_and_memory() -> None:
    found = cells(overhead_table(made_results(), "none"), "85M")
    assert {title: cell.text for title, cell in found.items()} == {
        "size": "85M",
        "sequences": "4 × 1,024",
        "rope, ms": "40.00",
        "content, ms": "41.20",
        "content, overhead": "+3.0%",
        "content:competition=1, ms": "41.60",
        "content:competition=1, overhead": "+4.0%",
        "paper": "+4.4%",
        "target": "+2.5%",
        "rope, GiB": "1.00",
        "content, memory": "× 1.06",
        "content:competition=1, memory": "× 1.06",
    }
    assert (found["paper"].style, found["target"].style) == ("emphasis", "emphasis")


def test_within_the_target_is_bold_and_beyond_is_not() -> None:
    compiled = overhead_table(made_results(), "compile")
    assert cells(compiled, "0.8M")["content, overhead"] == Cell("+4.0%", "strong")
    assert cells(compiled, "302M")["content, overhead"] == Cell("+3.0%", "plain")
    assert cells(compiled, "85M at 8,192")["content, overhead"] == Cell("+1.0%", "plain")  # nothing to reach there


def test_the_target_is_for_a_gpu() -> None:
    table = overhead_table(made_results(gpu=False), "none")
    assert "target" not in table.head
    assert "rope, GiB" not in table.head
    assert "paper" in table.head
    assert all(cell.style != "strong" for line in table.rows for cell in line)


def test_columns_without_numbers_are_left_out() -> None:
    assert "paper" not in overhead_table(made_results({"85M at 8,192": TIMES["85M at 8,192"]}), "none").head


def test_a_gap_says_why() -> None:
    found = cells(overhead_table(made_results(one_row(40.0, "CUDA out of memory.", "no such kernel")), "none"), "85M")
    assert found["content, ms"].text == "out of memory"
    assert found["content:competition=1, ms"].text == "failed"
    assert "content, overhead" not in found


def test_repetitions_have_a_spread() -> None:
    found = cells(overhead_table(made_results(one_row(40.0, 42.0), seeds=3), "none"), "85M")
    assert found["content, overhead"].text == "+5.1% ± 0.1"


def test_a_row_without_an_acceleration_is_not_in_its_table() -> None:
    results = made_results({"85M": TIMES["85M"], "0.8M": {"none": (1.0, 1.1)}})
    assert [line[0].text for line in overhead_table(results, "compile").rows] == ["85M"]


def test_all_measurements_are_there_with_means_and_extremes() -> None:
    table = all_measurements(made_results())
    assert len(table.rows) == len(TIMES) * 3 * 3
    found = cells(table, "85M, eager, content")
    assert [found[title].text for title in table.head[1:]] == [
        "810,049", "41.20", "41.32", "40.79", "42.02", "+3.0%", "1.06",
    ]  # fmt: skip
    assert cells(table, "85M, eager, rope")["overhead of means"].text == ""
    assert len(all_measurements(made_results(one_row(40.0, "out of memory"))).rows) == 1


def test_the_paper_s_table() -> None:
    assert [tuple(printed) for printed in TABLE.values()] == [(42, 10.3), (702, 4.4), (1215, 3.5), (1428, 2.0)]
    assert list(TABLE) == list(TARGETS)
    assert all(TARGETS[row] < printed.overhead for row, printed in TABLE.items())
