"""Each rule says what the numbers say: every one is tried both ways."""

from __future__ import annotations

from typing import Any

import pytest

from contentrope.reports.timing.findings import findings
from tests.reports.timing.made_up import Times, made_results


def said(times: Times, seeds: int = 1, gpu: bool = True) -> str:
    return "\n".join(findings(made_results(times, seeds, gpu)))


def eager(**times: tuple[float | str, ...]) -> Times:
    """Rows without an exponent, eager; underscores stand for dots and M is added."""
    return {f"{name.strip('s').replace('_', '.')}M": {"none": values} for name, values in times.items()}


# --- target and paper ----------------------------------------------------------------------------------------------


def test_which_rows_meet_the_target() -> None:
    text = said(eager(s0_8=(100.0, 105.0), s85=(100.0, 102.6), s302=(100.0, 101.0)))
    assert (
        "Eager, content meets the target at 0.8M (+5.0%, at most +5.0%) and 302M (+1.0%, at most +2.0%); "
        "it misses the target at 85M (+2.6%, at most +2.5%)."
    ) in text


def test_all_may_meet_it_or_none() -> None:
    text = said(eager(s680=(100.0, 99.0)))
    assert "Eager, content meets the target at 680M (−1.0%, at most +1.5%)." in text
    assert "misses" not in text
    text = said(eager(s680=(100.0, 103.0)))
    assert "Eager, content misses the target at 680M (+3.0%, at most +1.5%)." in text
    assert "meets" not in text


def test_the_paper_is_undercut_or_not() -> None:
    text = said(eager(s0_8=(100.0, 108.0), s85=(100.0, 104.4)))
    assert (
        "Eager, the overhead of content is below the paper's at 0.8M (+8.0%, +10.3% there); "
        "it is not below the paper's at 85M (+4.4%, +4.4% there)."
    ) in text


def test_the_paper_has_no_exponent_and_no_other_lengths() -> None:
    assert "the overhead of content:competition=1 is" not in said({"85M": {"none": (1.0, 1.1, 1.2)}})
    text = said({"85M at 8,192": {"none": (1.0, 1.1)}})
    assert "paper" not in text
    assert "target" not in text


def test_a_cpu_is_held_to_nothing() -> None:
    text = said(eager(s0_8=(100.0, 101.0)), gpu=False)
    assert "target" not in text
    assert "paper" not in text


# --- acceleration --------------------------------------------------------------------------------------------------


def test_where_compiling_helps() -> None:
    text = said(
        {
            "0.8M": {"none": (100.0, 120.0), "compile": (50.0, 52.0)},
            "85M": {"none": (100.0, 102.0), "compile": (110.0, 115.5)},
            "302M": {"none": (100.0, 102.0), "compile": (99.0, 101.2)},
        }
    )
    assert (
        "Compiling makes rope faster at 0.8M (× 2.00), makes rope slower at 85M (× 0.91), "
        "leaves rope as it is at 302M (× 1.01)."
    ) in text
    assert "Compiling makes content faster at 0.8M (× 2.31), makes content slower at 85M" in text
    assert (
        "Compiling lowers the overhead of content at 0.8M (+20.0% to +4.0%), "
        "raises the overhead of content at 85M (+2.0% to +5.0%), "
        "does not change the overhead of content at 302M (+2.0% to +2.2%)."
    ) in text


def test_a_graph_is_compared_with_what_is_compiled() -> None:
    text = said({"85M": {"compile": (30.0, 33.0), "graphs": (20.0, 21.0)}})
    assert "Capturing the compiled step as one CUDA graph makes rope faster at 85M (× 1.50)." in text
    assert "as one CUDA graph lowers the overhead of content at 85M (+10.0% to +5.0%)." in text
    assert "Compiling" not in text


def test_one_acceleration_is_compared_with_nothing() -> None:
    assert "Compiling" not in said(eager(s85=(1.0, 1.1)))


# --- length and memory ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("long", "change"),
    [
        ((101.0, 100.5), "falls with the length of the sequences: +2.0% at 1,024, +1.0% at 8,192, +0.5% at 32,768"),
        ((103.0, 104.0), "grows with the length of the sequences: +2.0% at 1,024, +3.0% at 8,192, +4.0% at 32,768"),
        ((103.0, 101.0), "neither grows nor falls steadily with the length"),
        ((102.0, 102.0), "neither grows nor falls steadily with the length"),
    ],
)
def test_how_the_overhead_goes_with_the_length(long: tuple[float, float], change: str) -> None:
    rows = {"85M at 8,192": long[0], "85M": 102.0, "85M at 32,768": long[1]}
    text = said({row: {"none": (100.0, value)} for row, value in rows.items()})
    assert f"Eager, the overhead of content at 85M {change}" in text


def test_one_length_is_no_trend() -> None:
    assert "length" not in said(eager(s0_8=(1.0, 1.1), s85=(1.0, 1.1)))


@pytest.mark.parametrize(
    ("bytes_", "sentence"),
    [
        (1200, "content needs up to 1.20 times the peak memory of rope (85M, eager)."),
        (1004, "content needs nowhere more peak memory than rope (at most 1.00 times)."),
        (900, "content needs nowhere more peak memory than rope (at most 0.90 times)."),
    ],
)
def test_how_much_more_memory_is_needed(bytes_: int, sentence: str) -> None:
    results = made_results(eager(s85=(1.0, 1.1)))
    timings = results["variants"]["85M"]["runs"]["0"]["timings"]["none"]
    timings["rope"]["peak_bytes"], timings["content"]["peak_bytes"] = 1000, bytes_
    assert sentence in findings(results)


def test_without_memory_nothing_is_said_of_it() -> None:
    assert "memory" not in said(eager(s85=(1.0, 1.1)), gpu=False)


# --- noise and gaps ------------------------------------------------------------------------------------------------


def with_mean_overhead(value: float) -> str:
    results: dict[str, Any] = made_results(eager(s85=(100.0, 102.0)))
    results["variants"]["85M"]["runs"]["0"]["timings"]["none"]["content"]["overhead_of_means_percent"] = value
    return "\n".join(findings(results))


def test_noise_is_told() -> None:
    text = with_mean_overhead(7.0)
    assert "Noisy, not to be relied on to a point: content at 85M, eager (+2.0% by median, +7.0% by mean)." in text
    assert "Noisy" not in with_mean_overhead(2.9)


def test_what_could_not_be_timed_is_told_with_the_reason() -> None:
    text = said({"85M": {"none": (1.0, "CUDA out of memory. Tried to allocate 2.00 GiB.")}})
    reason = "CUDA out of memory. Tried to allocate 2.00 GiB"
    assert f"Not timed: content at 85M, eager ({reason})." in text
    assert "Not timed" not in said(eager(s85=(1.0, 1.1)))


def test_without_a_baseline_nothing_is_compared() -> None:
    text = said({"85M": {"none": ("out of memory", 1.0, 1.1)}})
    assert "target" not in text
    assert "Not timed: rope at 85M, eager (out of memory)." in text


def test_nothing_is_said_of_nothing() -> None:
    assert findings(made_results({})) == []
