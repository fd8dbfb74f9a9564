"""Each rule says what the numbers say: every one is tried both ways."""

from collections.abc import Sequence
from typing import Any

import pytest

from contentrope.reports.facts.findings import findings
from contentrope.reports.facts.paper import TABLE
from tests.reports.facts.made_up import MEMORY, ROWS, made_order, made_results, made_scaling

PAPER = tuple(TABLE["hit5"]["content"].values())
HALF, MORE = (0.5,) * 12, (0.6,) * 12


def said(hits: dict[str, Sequence[float | None]], seeds: int = 1, **changes: Any) -> str:
    results = made_results(hits, seeds)
    results["config"] |= changes
    return "\n".join(findings(results))


def one_changed(values: Sequence[float], row: str, value: float) -> tuple[float, ...]:
    return tuple(value if name == row else old for name, old in zip(ROWS, values, strict=True))


# --- the best ------------------------------------------------------------------------------------------------------


def test_which_is_highest_where() -> None:
    assert "Highest hit@5 in every row: a." in said({"a": MORE, "b": HALF})
    text = said({"a": MORE, "b": (*HALF[:8], 0.9, 0.9, 0.9, 0.9)})
    assert "Highest hit@5 in 8 rows (all of single fact; all of same entities): a." in text
    assert "Highest hit@5 in 4 rows (all of same relation): b." in text
    text = said({"a": MORE, "b": one_changed(HALF, ROWS[2], 0.7)})
    assert "Highest hit@5 in 1 row (single fact, chain3, train): b." in text


def test_the_highest_may_be_shared_but_not_by_all() -> None:
    assert "Highest hit@5 in every row: a and b." in said({"a": MORE, "b": MORE, "c": HALF})
    assert "Highest" not in said({"a": MORE, "b": MORE})
    assert "Highest" not in said({"a": MORE})


def test_a_gap_within_the_spread_over_seeds_is_said_to_be() -> None:
    close = tuple(value - 0.002 for value in MORE)
    assert "smaller than the spread over seeds in every row" in said({"a": MORE, "b": close}, seeds=3)
    assert "spread" not in said({"a": MORE, "b": HALF}, seeds=3)
    assert "spread" not in said({"a": MORE, "b": close}, seeds=1)


# --- the paper -----------------------------------------------------------------------------------------------------


def test_a_content_variant_reaches_the_paper_in_all_rows_or_not() -> None:
    for name in ("content", "content:competition=1", MEMORY):
        assert f"{name} is at or above the paper's content in all 12 rows." in said({name: PAPER})
        text = said({name: one_changed(PAPER, ROWS[9], 0.522)})
        place = "same relation, chain2, test (0.522 against 0.523)"
        assert f"{name} is at or above the paper's content in 11 of 12 rows, below it in {place}." in text


def test_other_exponents_are_compared_with_the_paper_too() -> None:
    results = made_results({"content": HALF, "random": HALF}, 1)
    for name in results["variants"]:
        own = results["variants"][name]["runs"]["0"]
        own["exponents"] = {"0.5": made_results({"content": PAPER}, 1)["variants"]["content"]["runs"]["0"]["rows"]}
    text = "\n".join(findings(results))
    assert "content is at or above the paper's content in 2 of 12 rows" in text
    assert "content under exponent 0.5 is at or above the paper's content in all 12 rows." in text
    assert "random under" not in text


def test_the_paper_is_reached_where_the_print_is_the_same() -> None:
    assert "all 12 rows" in said({"content": one_changed(PAPER, ROWS[9], 0.5226)})


def test_rows_that_were_not_measured_do_not_count() -> None:
    assert "at or above the paper's content in all 11 rows." in said({"content": (None, *PAPER[1:])})


def test_other_schemes_and_other_tasks_are_not_compared_with_the_paper() -> None:
    assert "the paper's content" not in said({"rope": PAPER})
    assert "the paper's content" not in said({"content": PAPER}, distractors=9)
    text = said({"content": PAPER}, facts=[1, 5])
    assert "all 12 rows (trained on 1 to 5 facts, the paper's on one)." in text


# --- the exponent --------------------------------------------------------------------------------------------------


def test_what_the_exponent_changes() -> None:
    text = said({"content": HALF, "content:competition=1": MORE})
    assert "from content to content:competition=1 by +0.100 in the mean of 12 rows: higher in every row." in text
    text = said({"content": MORE, "content:competition=1": HALF})
    assert "by -0.100 in the mean of 12 rows: lower in every row." in text
    text = said({"content": HALF, "content:competition=1": one_changed(HALF, ROWS[0], 0.62)})
    assert "by +0.010 in the mean of 12 rows: higher in 1 row (single fact, chain2, train)" in text
    assert "not clearly different in 11." in text


def test_a_change_within_the_spread_is_not_clear() -> None:
    close = tuple(value + 0.002 for value in HALF)
    text = said({"content": HALF, "content:competition=1": close}, seeds=3)
    assert "rows: not clearly different in 12." in text


def test_the_exponent_needs_its_twin() -> None:
    assert "exponent" not in said({"content:competition=1": MORE, "rope": HALF})
    assert "exponent" not in said({"content": MORE, MEMORY: HALF})
    assert "from content + memory to" in said({"content + memory": MORE, MEMORY: HALF})


# --- seen and unseen names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "unseen", "sentence"),
    [
        (0.9, 0.8, "Unseen names lower hit@5, in the mean over conditions, of rope (-0.100)."),
        (0.8, 0.9, "Unseen names raise hit@5, in the mean over conditions, of rope (+0.100)."),
        (0.8, 0.795, "Unseen names change hit@5 by less than 0.01 in the mean over conditions: rope."),
    ],
)
def test_what_unseen_names_cost(seen: float, unseen: float, sentence: str) -> None:
    assert sentence in said({"rope": (seen, unseen) * 6})


def test_unseen_names_need_both_rows_of_a_pair() -> None:
    assert "Unseen" not in said({"rope": (0.9, None) * 6})
    assert "rope (-0.100)" in said({"rope": (0.9, 0.8, *(0.9, None) * 5)})


# --- distractors and order -----------------------------------------------------------------------------------------


def with_part(part: str, found: dict[str, Any]) -> str:
    results = made_results(dict.fromkeys(found, HALF), seeds=1)
    for name, value in found.items():
        results["variants"][name]["runs"]["0"][part] = value
    return "\n".join(findings(results))


def test_how_many_distractors_a_variant_bears() -> None:
    curves = {
        "a": {4: 0.99, 16: 0.95, 64: 0.90},
        "b": {4: 0.95, 16: 0.89, 64: 0.95},
        "c": {4: 0.80, 16: 0.70, 64: 0.60},
    }
    text = with_part("scaling", {name: made_scaling(curve) for name, curve in curves.items()})
    assert "is 0.90 or more up to 64 distractors, the most that were tried: a." in text
    assert "is 0.90 or more up to 4 distractors, not further: b." in text
    assert "is below 0.90 with the fewest distractors already: c." in text


def test_whose_answers_depend_on_the_order() -> None:
    text = with_part("order", {"a": made_order(0.0), "b": made_order(0.372), "c": made_order(0.0, 0.5)})
    unmoved = "a (no logit moves by more than 3.1e-06) and c (no logit moves by more than 0.50)"
    assert f"Another order of the facts changes no answer of {unmoved}." in text
    assert "Another order of the facts changes answers of b (37.2%)." in text


def test_without_measurements_there_is_nothing_to_say() -> None:
    text = said({"a": MORE, "b": HALF})
    assert "distractors" not in text
    assert "order" not in text
    assert findings(made_results({})) == []
