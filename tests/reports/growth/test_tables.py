"""The tables show the numbers of the result file: compared with means computed here, without the library."""

import math
import statistics
from typing import Any

import pytest

from contentrope.reports.costs import cost_table
from contentrope.reports.growth.details import distant_table, position_table
from contentrope.reports.growth.paper import LENGTHS as PAPER_LENGTHS
from contentrope.reports.growth.paper import TABLE_1
from contentrope.reports.growth.tables import length_table
from contentrope.reports.measured import mean_and_spread, number
from contentrope.reports.tables import Table, markdown_table, markdown_text
from tests.reports.growth.made_up import CURVES, LENGTHS, made_results, made_run, with_details


def row(table: Table, name: str, after: int = 0) -> list[str]:
    """The cells of a row, or of one that stands ``after`` it."""
    names = [cells[0].text for cells in table.rows]
    return [cell.text for cell in table.rows[names.index(name) + after][1:]]


def bold(table: Table, length: int) -> list[str]:
    column = table.head.index(f"{length:,}")
    return [cells[0].text for cells in table.rows if cells[column].style == "strong"]


def independent(results: dict[str, Any], variant: str, length: int) -> str:
    values = [run["perplexity"][str(length)] for run in results["variants"][variant]["runs"].values()]
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def test_every_cell_is_mean_and_deviation_over_seeds() -> None:
    results = made_results()
    table = length_table(results)
    assert table.head == ["characters read", "256", "512", "1,024", "2,048", "4,096"]
    for variant in CURVES:
        assert row(table, variant) == [independent(results, variant, length) for length in LENGTHS]


def test_the_lowest_of_each_column_is_bold() -> None:
    table = length_table(made_results())
    assert [bold(table, length) for length in LENGTHS] == [["rope"]] + [["content:competition=1"]] * 4


def test_equal_in_print_is_equally_bold() -> None:
    table = length_table(made_results({"content": (4.401,) * 5, "rope": (4.402,) * 5, "alibi": (4.5,) * 5}, seeds=1))
    assert bold(table, 256) == ["content", "rope"]


@pytest.mark.parametrize("names", [["content"], ["content", "rope"]])
def test_where_all_are_alike_nothing_is_bold(names: list[str]) -> None:
    assert bold(length_table(made_results(dict.fromkeys(names, (4.4,) * 5))), 256) == []


def test_one_seed_has_no_deviation() -> None:
    table = length_table(made_results(seeds=1))
    assert row(table, "content") == ["4.40", "4.37", "4.41", "4.54", "4.89"]


def test_seeds_are_counted_only_where_variants_differ() -> None:
    results = made_results()
    assert "seeds" not in length_table(results).head
    del results["variants"]["rope"]["runs"]["2"]
    table = length_table(results)
    assert table.head[1] == "seeds"
    assert row(table, "rope")[:2] == ["2", independent(results, "rope", 256)]
    assert row(table, "rope", after=1)[:2] == ["", "4.70"]
    assert row(table, "content")[0] == "3"


def test_a_variant_without_runs_has_no_row() -> None:
    results = made_results()
    results["variants"]["rope"]["runs"] = {}
    assert "rope" not in [cells[0].text for cells in length_table(results).rows]


def test_a_length_read_with_one_seed_has_one_number_and_others_none() -> None:
    results = made_results()
    runs = results["variants"]["content"]["runs"]
    runs["0"]["perplexity"]["65536"] = 4.2
    table = length_table(results)
    assert row(table, "content")[-1] == "4.20"
    assert row(table, "alibi")[-1] == ""
    runs["2"]["perplexity"]["65536"] = 4.4
    assert row(length_table(results), "content")[-1] == "4.30 ± 0.14 (n=2)"


@pytest.mark.parametrize("infinite", [None, math.inf, math.nan])
def test_null_is_infinite_and_never_the_lowest(infinite: float | None) -> None:
    results = made_results({"content": (4.4,) * 5, "rope": (4.3,) * 5})
    results["variants"]["rope"]["runs"]["1"]["perplexity"]["4096"] = infinite
    table = length_table(results)
    assert row(table, "rope")[-1] == "inf"
    assert bold(table, 4096) == ["content"]
    assert bold(table, 2048) == ["rope"]
    results["variants"]["content"]["runs"]["1"]["perplexity"]["4096"] = None
    assert bold(length_table(results), 4096) == []


def test_rows_stand_in_the_order_asked_for_not_of_finishing() -> None:
    results = made_results()
    results["variants"] = dict(reversed(results["variants"].items()))
    named = [cells[0].text for cells in length_table(results, paper=False).rows]
    assert named == list(CURVES)


def test_chosen_variants_alone() -> None:
    table = length_table(made_results(), ["rope", "alibi"], paper=False)
    assert [cells[0].text for cells in table.rows] == ["rope", "alibi"]
    assert bold(table, 4096) == ["alibi"]


# --- the paper's rows ----------------------------------------------------------------------------------------------


def test_the_paper_stands_below_what_repeats_it() -> None:
    table = length_table(made_results())
    theirs = {name: [f"{value:.2f}" for value in TABLE_1[name].values()] for name in TABLE_1}
    for name, scheme in {name: name for name in TABLE_1}.items() | {("rope:frequencies=model_wide", "rope")}:
        assert row(table, name, after=1) == theirs[scheme]
    below_competition = table.rows[[cells[0].text for cells in table.rows].index("content:competition=1") + 1]
    assert below_competition[0].text == "random"


def test_table_1_as_printed() -> None:
    assert PAPER_LENGTHS == (256, 512, 1024, 2048, 4096)
    assert list(TABLE_1["content"].values()) == [4.81, 4.74, 4.85, 4.83, 4.86]
    assert list(TABLE_1["random"].values()) == [4.89, 4.79, 4.90, 4.87, 4.91]
    assert list(TABLE_1["alibi"].values()) == [4.96, 4.94, 4.96, 4.93, 4.93]
    assert list(TABLE_1["rope"].values()) == [4.70, 5.99, 8.23, 10.71, 13.36]


@pytest.mark.parametrize("corpus", [{"name": "stdlib"}, {"name": "shakespeare", "search_share": 0.1}])
def test_the_paper_is_not_shown_beside_other_text(corpus: dict[str, Any]) -> None:
    results = made_results() | {"corpus": corpus}
    assert "paper" not in [cells[0].text for cells in length_table(results).rows]


def test_the_paper_is_not_shown_beside_another_training_length() -> None:
    results = made_results()
    results["config"]["length"] = 128
    assert "paper" not in [cells[0].text for cells in length_table(results).rows]


def test_lengths_the_paper_does_not_have_stay_empty() -> None:
    results = made_results({"content": (4.4, 4.5, 4.6)}, lengths=(128, 256, 8192))
    assert row(length_table(results), "paper") == ["", "4.81", ""]
    results = made_results({"content": (4.4, 4.5)}, lengths=(128, 8192))
    assert len(length_table(results).rows) == 1


# --- the smaller tables --------------------------------------------------------------------------------------------


def test_positions_are_means_over_seeds() -> None:
    table = position_table(with_details(made_results({"content": (4.4,) * 5})))
    assert table is not None
    assert table.head[1:3] == ["0 to 15", "16 to 31"]
    assert table.head[-1] == "2,048 to 4,095"
    assert row(table, "content")[:2] == [f"{statistics.mean([9.0, 9.001, 9.002]):.2f}", "5.20"]


def test_many_bins_are_thinned_to_a_few_with_both_ends() -> None:
    results = made_results({"content": (4.4,) * 5}, seeds=1)
    edges = list(range(0, 4097, 16))
    run = results["variants"]["content"]["runs"]["0"]
    run["by_position"] = {"length": 4096, "edges": edges, "perplexity": [4.0 + i for i in range(256)]}
    table = position_table(results)
    assert table is not None
    assert len(table.head) <= 11
    assert (table.head[1], table.head[-1]) == ("0 to 15", "4,080 to 4,095")
    assert (row(table, "content")[0], row(table, "content")[-1]) == ("4.00", "259.0")


def test_runs_with_other_bins_are_left_out() -> None:
    results = with_details(made_results({"content": (4.4,) * 5, "rope": (4.4,) * 5}, seeds=2))
    other = {"length": 4096, "edges": [0, 8, 16, 64, 128, 256, 512, 1024, 2048, 4096], "perplexity": [99.0] * 9}
    results["variants"]["content"]["runs"]["1"]["by_position"] = other
    for run in results["variants"]["rope"]["runs"].values():
        run["by_position"] = other
    table = position_table(results)
    assert table is not None
    assert [cells[0].text for cells in table.rows] == ["content"]
    assert row(table, "content")[0] == "9.00"


def test_distant_text_is_compared_seed_by_seed() -> None:
    results = with_details(made_results({"content": (4.4,) * 5, "rope": (4.4,) * 5}, seeds=2))
    for seed, (before, after) in {"0": (4.0, 4.1), "1": (5.0, 5.1)}.items():
        perplexity = results["variants"]["rope"]["runs"][seed]["distant"]["perplexity"]
        perplexity |= {"as written": before, "deleted": after, "shuffled": 0.99 * before, "replaced": None}
        perplexity["untouched"] = before * (1 - 1e-9)
    table = distant_table(results)
    assert table is not None
    assert table.head[1:] == ["as written", "shuffled", "deleted", "replaced", "untouched"]
    spread = statistics.stdev([2.5, 2.0])
    assert row(table, "rope") == ["4.50 ± 0.71", "−1.00% ± 0.00", f"+2.25% ± {spread:.2f}", "+inf%", "0.00% ± 0.00"]
    assert row(table, "content")[-1] == ""


def test_without_the_measurements_there_are_no_such_tables() -> None:
    assert position_table(made_results()) is None
    assert distant_table(made_results()) is None


def test_costs_are_means_over_seeds() -> None:
    table = cost_table(made_results({"content": (4.4,) * 5}))
    assert table.head[1:] == ["parameters", "final loss", "training, s", "steps per second", "evaluation, s"]
    assert row(table, "content") == ["818,561", "1.21 ± 0.01", "13.30 ± 1.00", "419.0 ± 1.0", "3.10 ± 0.00"]
    run = made_run((4.4,) * 5)
    del run["training_seconds"]
    results = made_results({"content": (4.4,) * 5}, seeds=1)
    results["variants"]["content"]["runs"]["0"] = run
    assert row(cost_table(results), "content")[2] == ""


# --- numbers and Markdown ------------------------------------------------------------------------------------------


def test_mean_and_spread_against_statistics() -> None:
    values = [4.1, 4.7, 5.2]
    found = mean_and_spread(values)
    assert found.mean == pytest.approx(statistics.mean(values))
    assert found.spread == pytest.approx(statistics.stdev(values))
    assert mean_and_spread([3.0]).spread is None


@pytest.mark.parametrize(
    ("value", "printed"),
    [(4.405, "4.41"), (99.994, "99.99"), (412.04, "412.0"), (5321.4, "5,321"), (2e6, "2.0e+06"), (math.nan, "inf")],
)
def test_large_numbers_have_fewer_decimals(value: float, printed: str) -> None:
    assert number(value) == printed


def test_markdown_tables_keep_their_columns_whatever_is_in_a_name() -> None:
    text = markdown_text("a|b\n<script>`*x*[y](z)&")
    assert "\n" not in text
    assert "<" not in text
    assert text.count("|") == text.count("\\|")
    table = length_table(made_results({"a|b": (4.0,) * 5, "c": (5.0,) * 5}), paper=False)
    lines = table.markdown().splitlines()
    assert {line.replace("\\|", "").count("|") for line in lines} == {7}


def test_a_markdown_table() -> None:
    assert markdown_table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
