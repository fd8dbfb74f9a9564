"""The tables of small results, calculated by hand."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from experiments.facts.plot import PAPER, ROWS, exponent_table, order_table, paper_scores, row_table, scaling_table
from experiments.growth.plot import PAPER as GROWTH_PAPER
from experiments.growth.plot import distant_table, length_table, position_table
from experiments.report import markdown, tables
from experiments.results import cost_table
from experiments.retrofit.plot import perplexity_table
from experiments.tables import Cell, Table, compared, measured
from experiments.timing.plot import all_measurements, overhead_table
from tests.experiments.report import made

ROW, OTHER = "single fact, chain2, test", "same entities, chain3, train"


def lines(table: Table | None) -> list[str]:
    assert table is not None
    head, rule, *rows = markdown(table).splitlines()
    assert rule.count("---") == head.count("|") - 1
    return [head, *rows]


# --- numbers to compare --------------------------------------------------------------------------------------------


def test_the_best_is_bold_with_all_that_print_the_same() -> None:
    found = {name: measured([value]) for name, value in {"a": 4.401, "b": 4.402, "c": 4.5, "d": math.inf}.items()}
    assert [cell.style for cell in compared(found).values()] == ["best", "best", "plain", "plain"]
    assert [cell.style for cell in compared(found, most=True).values()] == ["plain", "plain", "best", "plain"]


def test_none_is_best_where_all_print_the_same() -> None:
    assert {cell.style for cell in compared({"a": measured([1.0]), "b": measured([1.001])}).values()} == {"plain"}
    assert compared({"a": measured([None])}) == {"a": Cell("–")}


def test_some_but_not_all_seeds_are_counted() -> None:
    assert measured([1.0, 3.0], of=3).text() == "2.00 ± 1.41 (n=2)"
    assert measured([1.0], of=3).text() == "1.00"


# --- growth --------------------------------------------------------------------------------------------------------


def test_perplexity_by_length() -> None:
    results = made.growth(
        {"rope": [{8: 4.0, 16: None}, {8: 4.2, 16: 9.0}], "content": [{8: 4.0, 16: 5.0}, {8: 5.0, 16: 5.2}]}
    )
    assert lines(length_table(results)) == [
        "| characters read | 8 | 16 |",
        "| rope | **4.10 ± 0.14** | – |",
        "| content | 4.50 ± 0.71 | **5.10 ± 0.14** |",
    ]


def test_the_number_of_seeds_is_told_where_it_differs() -> None:
    results = made.growth({"rope": [{8: 4.0}, {8: 4.0, 1024: 9.0}], "nope": [{8: 6.0}]})
    assert lines(length_table(results)) == [
        "| characters read | seeds | 8 | 1,024 |",
        "| rope | 2 | **4.00 ± 0.00** | 9.00 |",
        "| nope | 1 | 6.00 |  |",
    ]


def test_the_papers_numbers_stand_below_what_repeats_them() -> None:
    variants = ("rope", "rope:frequencies=model_wide", "content:competition=1")
    curves = {name: [{256: 4.0, 8192: 5.0}] for name in variants}
    theirs = f"| *paper* | *{GROWTH_PAPER['rope'][256]:.2f}* |  |"
    found = lines(length_table(made.growth(curves, length=256, corpus="shakespeare")))
    assert found[1:] == [
        "| rope | 4.00 | 5.00 |",
        theirs,
        "| rope:frequencies=model_wide | 4.00 | 5.00 |",
        theirs,
        "| content:competition=1 | 4.00 | 5.00 |",
    ]
    for other in (made.growth(curves, length=128, corpus="shakespeare"), made.growth(curves, length=256)):
        assert not any("paper" in line for line in lines(length_table(other)))


def test_perplexity_by_position_and_use_of_distant_text() -> None:
    results = made.growth({"rope": [{8: 4.0}, {8: 4.0}]})
    for seed, run in enumerate(results["variants"]["rope"]["runs"].values()):
        run["by_position"] = {"edges": [0, 4, 16], "perplexity": [5.0, 4.0 + seed]}
        perplexity = {"as written": 4.0, "deleted": 5.0 + seed, "shuffled": 4.0}
        run["distant"] = {"near": 4, "length": 16, "scored": 1000, "perplexity": perplexity}
    assert lines(position_table(results)) == ["| position | 0 to 3 | 4 to 15 |", "| rope | 5.00 | 4.50 |"]
    assert lines(distant_table(results)) == [
        "| distant text | as written | deleted | shuffled |",
        "| rope | 4.00 ± 0.00 | +37.50% ± 17.68% | 0.00% ± 0.00% |",
    ]


def test_what_training_took() -> None:
    results = made.growth({"rope": [{8: 4.0}, {8: 4.0}]})
    for seed, run in enumerate(results["variants"]["rope"]["runs"].values()):
        run |= {"parameters": 134_515_008, "final_loss": 1.0 + seed, "training_seconds": None}
    assert lines(cost_table(results)) == ["|  | parameters | final loss |", "| rope | 134,515,008 | 1.50 ± 0.71 |"]


# --- retrofit ------------------------------------------------------------------------------------------------------


def test_conversions_are_compared_with_the_original_seed_by_seed() -> None:
    curves = {"untouched": [{8: 4.0, 16: 8.0}, {8: 5.0, 16: 10.0}], "content": [{8: 4.0, 16: 4.4}, {8: 5.0, 16: 4.5}]}
    assert lines(perplexity_table(made.retrofit(curves))) == [
        "| characters read | 8 | 16 | 16 against the original at 8 |",
        "| untouched | 4.50 ± 0.71 | 9.00 ± 1.41 | +100.0% ± 0.0% |",
        "| content | 4.50 ± 0.71 | **4.45 ± 0.07** | 0.0% ± 14.1% |",
    ]


# --- facts ---------------------------------------------------------------------------------------------------------


def test_hits_by_row_beside_the_papers() -> None:
    results = made.facts(
        {"content": [{ROW: 1.0, OTHER: 0.5}, {ROW: 0.5, OTHER: 0.5}], "random": [{ROW: 0.25, OTHER: 0.5}] * 2}
    )
    theirs = PAPER["hit5"]["content"]
    assert lines(row_table(results)) == [
        "| facts, kind, names | content | paper | random |",
        f"| {ROW} | **0.750 ± 0.354** | *{theirs[ROW]:.3f}* | 0.250 ± 0.000 |",
        f"| {OTHER} | 0.500 ± 0.000 | *{theirs[OTHER]:.3f}* | 0.500 ± 0.000 |",
    ]
    results["config"]["facts"] = [1, 8]
    assert lines(row_table(results))[0] == "| facts, kind, names | content | random |"


@pytest.mark.parametrize(
    ("variant", "model"),
    [("rope", "rope"), ("alibi:slopes=[0.25]", "alibi 0.25"), ("alibi:slopes=[0.5]", None), ("content:noise=1", None)],
)
def test_a_variant_repeats_one_of_the_papers_models(variant: str, model: str | None) -> None:
    theirs = paper_scores(made.facts({variant: [{ROW: 1.0}]}), variant)
    assert theirs == (PAPER["hit5"][model] if model else {})


def test_the_papers_tables_have_every_row() -> None:
    for models in PAPER.values():
        assert all(list(by_row) == list(ROWS) for by_row in models.values())
    content = PAPER["hit5"]["content"]
    assert (content["same relation, chain3, test"], content["same relation, chain3, train"]) == (0.190, 0.366)


def test_hits_under_other_exponents() -> None:
    exponents = {key: {ROW: {"hit5": hit}} for key, hit in (("0.5", 1.0), ("2", 0.25))}
    learned = "content:competition=1,learn_competition=true"
    results = made.facts({"content:competition=1": [{ROW: 0.5}], learned: [{ROW: 0.5}]}, exponents=exponents)
    results["variants"] |= made.facts({"rope": [{ROW: 0.5}]})["variants"]
    assert lines(exponent_table(results, "content:competition=1")) == [
        "| content:competition=1, exponent | 0.5 | 1 | 2 |",
        f"| {ROW} | **1.000** | 0.500 | 0.250 |",
    ]
    assert lines(exponent_table(results, learned))[1] == f"| {ROW} | 0.500 | **1.000** | 0.250 |"
    assert exponent_table(results, "rope") is None


def test_hits_among_more_distractors_and_in_another_order() -> None:
    scaling = {str(n): {kind: {"hit5": 1 / n, "perplexity": n} for kind in ("chain2", "chain3")} for n in (16, 4)}
    order = {"examples": 200, "permutations": 4, "answers_changed": 0.5, "largest_change": 3.9e-5}
    results = made.facts({"rope": [{ROW: 1.0}]}, scaling=scaling, order=order)
    assert lines(scaling_table(results))[:2] == [
        "| Hit@5 by distractors | 4 | 16 |",
        "| chain2, rope | 0.250 | 0.062 |",
    ]
    assert lines(scaling_table(results, "perplexity"))[2] == "| chain3, rope | 4.00 | 16.00 |"
    assert lines(order_table(results))[1] == "| rope | 200 | 4 | 50.0 | 3.9e-05 |"


# --- timing --------------------------------------------------------------------------------------------------------


def test_overheads_beside_the_papers_and_the_target() -> None:
    results = made.timing({"85M": {"rope": 10.0, "content": 10.2}, "85M at 8,192": {"rope": 10.0, "content": None}})
    head, *found = lines(overhead_table(results, "none"))
    assert head.endswith("| content, overhead | paper | target | rope, GiB | content, memory |")
    assert found == [
        "| 85M | 2 × 1,024 | 10.00 | 10.20 | **+2.0%** | *+4.4%* | *+2.5%* | 1.00 | × 1.00 |",
        "| 85M at 8,192 | 2 × 1,024 | 10.00 | out of memory |  |  |  | 1.00 | – |",
    ]
    assert lines(all_measurements(results))[-1].endswith("| CUDA out of memory |")


def test_targets_are_not_meant_for_a_cpu() -> None:
    found = lines(overhead_table(made.timing({"85M": {"rope": 10.0, "content": 10.1}}, device="cpu"), "none"))
    assert "target" not in found[0]
    assert "| +1.0% |" in found[1]


# --- all -----------------------------------------------------------------------------------------------------------


def test_every_table_is_as_wide_as_its_head(tmp_path: Path) -> None:
    rows = [", ".join(parts) for parts in product(("single fact", "same relation"), ("chain2",), ("train", "test"))]
    everything: list[dict[str, Any]] = [
        made.growth({"rope": [{8: 4.0}], "content": [{16: 4.0}, {8: 4.0}]}),
        made.retrofit({"untouched": [{8: 4.0, 16: 4.0}], "content": [{8: 4.0}]}),
        made.facts({"rope": [dict.fromkeys(rows, 1.0)], "content": [{rows[0]: 1.0}] * 2}),
        made.timing({"85M": {"rope": 1.0, "content": 2.0}, "302M": {"rope": None, "content": None}}),
    ]
    for results in everything:
        path = tmp_path / "results.json"
        path.write_text(json.dumps(results))
        for table in tables(path):
            assert {len(row) for row in table.rows} == {len(table.head)}, table.title
