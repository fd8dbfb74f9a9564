"""Each rule says what the numbers say: every one is tried both ways."""

import math
import statistics
from typing import Any

import pytest

from contentrope.reports.growth.findings import findings, paper_distance
from contentrope.reports.growth.paper import TABLE_1
from tests.reports.growth.made_up import made_results, with_details


def said(curves: dict[str, tuple[float | None, ...]], seeds: int = 1, **changes: Any) -> str:
    return "\n".join(findings(made_results(curves, seeds) | changes))


LEVEL, RISING = (4.40, 4.41, 4.40, 4.39, 4.42), (4.30, 6.16, 16.5, 39.3, 52.03)


def test_growth_is_told_in_times() -> None:
    assert "rope at 4,096 is 12.1 times its value at 256." in said({"content": LEVEL, "rope": RISING})


def test_small_growth_is_told_in_percent_up_or_down() -> None:
    assert "content at 4,096 is 11.0% above its value at 256." in said({"content": (4.0, 4.1, 4.2, 4.3, 4.44)})
    assert "content at 4,096 is 5.0% below its value at 256." in said({"content": (4.0, 3.9, 4.2, 4.3, 3.8)})


def test_a_level_curve_is_named_level_and_has_no_growth() -> None:
    text = said({"content": LEVEL, "rope": RISING})
    assert "Stays within 2% of its own value at 256 at every longer length: content." in text
    assert "content at" not in text


@pytest.mark.parametrize("place", [1, 4])
def test_one_value_outside_is_not_level(place: int) -> None:
    curve = list(LEVEL)
    curve[place] = 4.40 * 1.021
    assert "No variant stays within 2%" in said({"content": tuple(curve)})
    curve[place] = 4.40 * 1.019
    assert "Stays within 2%" in said({"content": tuple(curve)})


def test_a_curve_falls_all_the_way_or_not() -> None:
    falling = (4.40, 4.39, 4.38, 4.37, 4.36)
    assert "Falls all the way from 256 on: a and b." in said({"a": falling, "b": falling, "c": LEVEL})
    assert "No curve falls all the way from 256 on." in said({"a": (4.40, 4.39, 4.38, 4.37, 4.37)})


def test_lengths_below_the_training_length_do_not_count_as_growth() -> None:
    results = made_results({"a": (9.0, 4.40, 4.39, 4.38)}, lengths=(128, 256, 512, 1024))
    text = "\n".join(findings(results))
    assert "Stays within 2% of its own value at 256" in text
    assert "Falls all the way" in text


def test_a_length_read_by_one_seed_is_compared_with_that_seed() -> None:
    """Seed 2 is 5% above seed 0: beside the mean of both, seed 0 alone would seem to fall."""
    results = made_results({"a": (4.40, 4.39, 4.38, 4.37, 4.36)}, seeds=2)
    low, high = results["variants"]["a"]["runs"].values()
    high["perplexity"] = {length: value * 1.05 for length, value in low["perplexity"].items()}
    low["perplexity"]["65536"] = low["perplexity"]["4096"] * 1.01
    assert "No curve falls all the way" in "\n".join(findings(results))
    low["perplexity"]["65536"] = low["perplexity"]["4096"] * 0.99
    assert "Falls all the way" in "\n".join(findings(results))


def test_which_is_lowest_where() -> None:
    text = said({"content": LEVEL, "rope": RISING})
    assert "Lowest perplexity: rope at 256; content from 512 to 4,096." in text
    text = said({"content": LEVEL, "rope": tuple(value + 1 for value in LEVEL)})
    assert "Lowest perplexity: content from 256 to 4,096." in text


def test_the_lowest_may_be_shared_or_come_and_go() -> None:
    assert "Lowest perplexity: a and b from 256 to 4,096." in said({"a": LEVEL, "b": LEVEL, "c": (5.0,) * 5})
    assert "Lowest" not in said({"a": LEVEL, "b": LEVEL})
    text = said({"a": (4.0, 5.0, 4.0, 4.0, 5.0), "b": (4.5,) * 5})
    assert "Lowest perplexity: a at 256; b at 512; a at 1,024 and 2,048; b at 4,096." in text


def test_one_variant_is_not_called_lowest() -> None:
    assert "Lowest" not in said({"content": LEVEL})


def test_a_gap_within_the_spread_over_seeds_is_said_to_be() -> None:
    close, clear = (4.41, 4.42, 4.41, 4.40, 4.43), (4.5,) * 5
    assert "smaller than the spread over seeds from 256 to 4,096" in said({"a": LEVEL, "b": close}, seeds=3)
    assert "spread" not in said({"a": LEVEL, "b": clear}, seeds=3)
    assert "spread" not in said({"a": LEVEL, "b": close}, seeds=1)


def test_infinite_values_are_named_beside_the_last_finite_growth() -> None:
    text = said({"content": LEVEL, "rope": (4.0, 6.0, 8.0, None, None)})
    assert "rope at 1,024 is 2.0 times its value at 256." in text
    assert "rope is infinite at 2,048 and 4,096." in text
    assert "infinite" not in said({"content": LEVEL, "rope": RISING})


def test_everything_infinite_says_nothing() -> None:
    assert said({"rope": (None,) * 5, "content": (None,) * 5}) == ""
    assert findings(made_results({})) == []


def test_one_length_says_nothing_about_growth() -> None:
    text = "\n".join(findings(made_results({"a": (4.4,), "b": (4.5,)}, lengths=(256,))))
    assert text == "Lowest perplexity: a at 256."


# --- the paper -----------------------------------------------------------------------------------------------------

PAPER_ROPE = tuple(TABLE_1["rope"].values())
OTHER_ROPE = tuple(value * 1.5 for value in PAPER_ROPE)


def test_which_frequencies_are_nearer_the_paper() -> None:
    wide = "rope:frequencies=model_wide"
    assert "rope is nearer the paper with model-wide than" in said({"rope": OTHER_ROPE, wide: PAPER_ROPE})
    assert "rope is nearer the paper with per-head than" in said({"rope": PAPER_ROPE, wide: OTHER_ROPE})
    assert "rope is equally near" in said({"rope": OTHER_ROPE, wide: OTHER_ROPE})
    assert "nearer" not in said({"rope": OTHER_ROPE, "content": LEVEL})
    assert "nearer" not in said({"rope": OTHER_ROPE, wide: PAPER_ROPE}, corpus={"name": "stdlib"})


def test_the_layout_that_ran_counts_not_the_name() -> None:
    results = made_results({"rope": PAPER_ROPE, "rope:frequencies=per_head": OTHER_ROPE}, seeds=1)
    results["variants"]["rope"]["runs"]["0"]["model"]["rotary"] = {"frequencies": "model_wide"}
    assert "rope is nearer the paper with model-wide than" in "\n".join(findings(results))


def test_the_distance_is_the_mean_absolute_log_ratio() -> None:
    results = made_results({"rope": (5.0, 5.0, 8.0, 12.0, 20.0)}, seeds=2)
    runs = results["variants"]["rope"]["runs"].values()
    means = [statistics.mean(run["perplexity"][str(length)] for run in runs) for length in TABLE_1["rope"]]
    expected = statistics.mean(abs(math.log(a) - math.log(b)) for a, b in zip(means, PAPER_ROPE, strict=True))
    assert paper_distance(results, "rope") == pytest.approx(expected)
    assert paper_distance(made_results({"local": LEVEL}), "local") is None


# --- distant text --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deleted", "sentence"),
    [
        (4.242, "Perplexity changes when the distant text is deleted: content (+1.00%)."),
        (4.158, "Perplexity changes when the distant text is deleted: content (-1.00%)."),
        (4.202, "Deleting the distant text makes no clear difference to content."),
    ],
)
def test_whether_distant_text_is_used(deleted: float, sentence: str) -> None:
    assert sentence in findings(with_details(made_results({"content": LEVEL}, seeds=1), deleted))


def test_a_change_that_seeds_disagree_about_is_none() -> None:
    results = with_details(made_results({"content": LEVEL}, seeds=2), deleted=4.25)
    results["variants"]["content"]["runs"]["1"]["distant"]["perplexity"]["deleted"] = 4.16
    assert "Deleting the distant text makes no clear difference to content." in findings(results)
