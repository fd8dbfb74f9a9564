"""The tables show the numbers of the result file: compared with means computed here, without the library."""

import statistics
from typing import Any

import pytest

from contentrope.reports.facts.exponents import exponent_table, exponent_tables
from contentrope.reports.facts.paper import TABLE, paper_scores, repeated
from contentrope.reports.facts.rows import HIT, PERPLEXITY
from contentrope.reports.facts.rows import ROWS as ROWS_READ
from contentrope.reports.facts.scaling import scaling_table
from contentrope.reports.facts.tables import order_table, row_table
from contentrope.reports.tables import Table
from tests.reports.facts.made_up import HITS, MEMORY, ROWS, STRONG, WEAK, made_order, made_results, made_scaling

FLAT = (0.5,) * 12


def column(table: Table, name: str, after: int = 0) -> list[str]:
    """The cells of a column, or of one that stands ``after`` it."""
    place = table.head.index(name) + after
    return [line[place].text for line in table.rows]


def bold(table: Table, row: str) -> list[str]:
    line = next(line for line in table.rows if line[0].text == row)
    return [name for name, cell in zip(table.head, line, strict=True) if cell.style == "strong"]


def independent(results: dict[str, Any], variant: str, row: str) -> str:
    values = [run["rows"][row]["hit5"] for run in results["variants"][variant]["runs"].values()]
    return f"{statistics.fmean(values):.3f} ± {statistics.stdev(values):.3f}"


def test_every_cell_is_mean_and_deviation_over_seeds() -> None:
    results = made_results()
    table = row_table(results)
    assert list(ROWS_READ) == ROWS
    assert [line[0].text for line in table.rows] == ROWS
    for variant in HITS:
        assert column(table, variant) == [independent(results, variant, row) for row in ROWS]


def test_the_highest_hit_and_the_lowest_perplexity_are_bold() -> None:
    results = made_results({"content": (0.9,) * 12, "rope": (0.5, *(0.95,) * 11)})
    for metric in (HIT, PERPLEXITY):
        table = row_table(results, metric)
        assert [bold(table, row) for row in ROWS] == [["content"], *[["rope"]] * 11]


def test_equal_in_print_is_equally_bold_and_all_alike_is_not() -> None:
    table = row_table(made_results({"a": (0.9001,) * 12, "b": (0.9002,) * 12, "c": FLAT}, seeds=1))
    assert bold(table, ROWS[0]) == ["a", "b"]
    assert bold(row_table(made_results({"a": FLAT, "b": FLAT})), ROWS[0]) == []


def test_one_seed_has_no_deviation_and_missing_seeds_are_counted() -> None:
    assert column(row_table(made_results({"local": FLAT}, seeds=1)), "local") == ["0.500"] * 12
    results = made_results({"local": FLAT, "rope": FLAT})
    del results["variants"]["local"]["runs"]["2"]
    table = row_table(results)
    assert [cell.text for cell in table.rows[-1]] == ["seeds", "2", "3", ""]
    del results["variants"]["rope"]["runs"]["1"]["rows"][ROWS[0]]
    assert column(row_table(results), "rope")[0].endswith("(n=2)")


def test_rows_that_nobody_has_are_left_out_and_others_stay_empty() -> None:
    results = made_results({"a": (None, *FLAT[1:]), "b": (None, None, *FLAT[2:])}, seeds=1)
    table = row_table(results)
    assert [line[0].text for line in table.rows] == ROWS[1:]
    assert column(table, "b") == ["", *["0.500"] * 10]


def test_exponents_stand_in_order_beside_the_one_trained_with() -> None:
    results = made_results({"content:competition=1": FLAT, "content": FLAT, "rope": FLAT})
    for name, seeds in (("content:competition=1", 3), ("content", 2)):
        for seed in range(seeds):
            run = results["variants"][name]["runs"][str(seed)]
            rows = {row: {**found, "hit5": 0.6 + 0.1 * seed} for row, found in run["rows"].items()}
            run["exponents"] = {"2": rows, "0": rows, "1": rows}
    assert exponent_table(results, "rope") is None
    first, second = exponent_tables(results)
    assert first.head == ["content:competition=1, exponent", "0", "1", "2"]
    assert column(first, "2") == ["0.700 ± 0.100"] * 12
    assert column(first, "1") == [independent(results, "content:competition=1", row) for row in ROWS], "as trained"
    assert bold(first, ROWS[0]) == ["0", "2"]
    assert second.head == ["content, exponent", "0", "1", "2", "paper"]
    assert column(second, "2") == ["0.650 ± 0.071"] * 12, "of the seeds that have it"
    assert column(second, "paper") == [f"{TABLE['hit5']['content'][row]:.3f}" for row in ROWS]
    results["variants"]["content:learn_competition=true"] = results["variants"]["content:competition=1"]
    learned = exponent_table(results, "content:learn_competition=true")
    assert learned is not None
    assert learned.head[1:] == ["its own", "0", "1", "2"]


def test_null_is_infinite_and_never_the_lowest() -> None:
    results = made_results({"a": (0.9,) * 12, "b": FLAT})
    results["variants"]["a"]["runs"]["1"]["rows"][ROWS[0]]["perplexity"] = None
    table = row_table(results, PERPLEXITY)
    assert column(table, "a")[0] == "inf"
    assert bold(table, ROWS[0]) == ["b"]


# --- the paper's columns -------------------------------------------------------------------------------------------


def test_the_paper_stands_right_of_what_repeats_it() -> None:
    table = row_table(made_results())
    for name, model in {"content": "content", "rope": "rope", WEAK: "alibi 0.00390625", STRONG: "alibi 0.25"}.items():
        assert column(table, name, after=1) == [f"{TABLE['hit5'][model][row]:.3f}" for row in ROWS]
    assert table.head.count("paper") == 4
    cells = [line[table.head.index("paper")] for line in table.rows]
    assert {cell.style for cell in cells} == {"emphasis"}
    assert column(row_table(made_results(), PERPLEXITY), STRONG, after=1)[9] == "384.65"


def test_the_paper_as_printed() -> None:
    hits, perplexities = TABLE["hit5"], TABLE["perplexity"]
    assert list(hits["content"].values()) == [1, 0.898, 1, 0.8, 1, 0.97, 1, 0.878, 0.665, 0.523, 0.366, 0.19]
    assert hits["rope"]["single fact, chain2, test"] == 0.916
    assert hits["alibi 0.00390625"]["same entities, chain2, train"] == 0.25
    assert hits["alibi 0.25"]["same relation, chain3, test"] == 0.002
    assert perplexities["content"]["same relation, chain3, test"] == 5.51
    assert perplexities["rope"]["same entities, chain3, train"] == 2.17
    assert perplexities["alibi 0.00390625"]["single fact, chain3, test"] == 58.36


@pytest.mark.parametrize(
    "variant",
    ["content:competition=1", "content + memory", MEMORY, "random", "alibi", "alibi:slopes=[0.5]", "alibi:slopes=x"],
)
def test_what_the_paper_did_not_run_has_none_of_its_numbers(variant: str) -> None:
    assert repeated(variant) is None
    assert paper_scores(made_results({variant: FLAT}), variant) == {}


@pytest.mark.parametrize(
    "change",
    [
        lambda results: results["config"].update(facts=[1, 5]),
        lambda results: results["config"].update(distractors=8),
        lambda results: results["corpus"].update(names=300),
        lambda results: results["corpus"].update(test_names=None),
    ],
)
def test_the_paper_is_not_shown_beside_another_task(change: Any) -> None:
    results = made_results()
    change(results)
    assert "paper" not in row_table(results).head


# --- the smaller tables --------------------------------------------------------------------------------------------


def test_scaling_is_a_mean_over_seeds_with_the_best_of_a_kind_in_bold() -> None:
    results = made_results({"a": FLAT, "b": FLAT}, seeds=2)
    for name, hits in {"a": (0.98, 0.92), "b": (0.5, 0.5)}.items():
        for seed, hit in enumerate(hits):
            results["variants"][name]["runs"][str(seed)]["scaling"] = made_scaling({4: hit, 64: hit / 2})
    table = scaling_table(results)
    assert table is not None
    assert table.head[1:] == ["4", "64"]
    lines = {line[0].text: line[1:] for line in table.rows}
    assert list(lines) == ["chain2, a", "chain2, b", "chain3, a", "chain3, b"]
    assert lines["chain2, a"][0].text == f"0.950 ± {statistics.stdev([0.98, 0.92]):.3f}"
    assert lines["chain2, a"][0].style == lines["chain3, a"][1].style == "strong"
    assert lines["chain2, b"][0].style == "plain"


def test_order_is_told_with_its_largest_change() -> None:
    results = made_results({"a": FLAT, "b": FLAT, "c": FLAT}, seeds=2)
    for seed, changed in enumerate((0.30, 0.40)):
        results["variants"]["a"]["runs"][str(seed)]["order"] = made_order(changed, 1.0 + seed)
        precise = {"largest_change_float64": (1 + seed) * 1e-14}  # older files have none
        results["variants"]["b"]["runs"][str(seed)]["order"] = made_order(0.0) | precise
    table = order_table(results)
    assert table is not None
    lines = [[cell.text for cell in line] for line in table.rows]
    assert lines == [
        ["a", "200", "4", "35.0 ± 7.1", "2.00", ""],
        ["b", "200", "4", "0.0 ± 0.0", "3.1e-06", "2.0e-14"],
    ]


def test_without_the_measurements_there_are_no_such_tables() -> None:
    assert scaling_table(made_results()) is None
    assert order_table(made_results()) is None
