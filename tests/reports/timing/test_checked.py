"""A damaged or foreign result file is refused, by name and place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contentrope.errors import InputError
from contentrope.reports import read_results, write_report
from contentrope.reports.checked import check_results
from tests.reports.timing.made_up import made_results

Change = Callable[[dict[str, Any], dict[str, Any]], object]


def changed(change: Change) -> dict[str, Any]:
    results = made_results({"85M": {"none": (40.0, 41.0, "out of memory")}})
    change(results, results["variants"]["85M"]["runs"]["0"])
    return results


def test_a_whole_file_is_taken() -> None:
    check_results(changed(lambda results, run: None))
    check_results(made_results())
    check_results(made_results(gpu=False))
    check_results(made_results({}))


def content(run: dict[str, Any]) -> dict[str, Any]:
    return run["timings"]["none"]["content"]


def failed(run: dict[str, Any]) -> dict[str, Any]:
    return run["timings"]["none"]["content:competition=1"]


PLACE = "content, none in run 0 of 85M"
REFUSED: list[tuple[Change, str]] = [
    (lambda results, run: results.update(corpus=None), "corpus should be a JSON object"),
    (lambda results, run: results["config"].update(schemes="rope"), "config.schemes is 'rope', not a list of str"),
    (lambda results, run: results["config"].update(accelerations=[1]), "config.accelerations is [1]"),
    (lambda results, run: results["config"].update(timed_steps="ten"), "config.timed_steps is 'ten'"),
    (lambda results, run: results["config"].update(vocabulary=-1), "config.vocabulary is -1"),
    (lambda results, run: run.pop("timings"), "timings in run 0 of 85M should be a JSON object, got nothing"),
    (lambda results, run: run.update(timings=[]), "timings in run 0 of 85M should be"),
    (lambda results, run: run["timings"].update(warp={}), "has 'warp', which is none of none, compile, graphs"),
    (lambda results, run: run["timings"].update(none=3), "none in run 0 of 85M should be"),
    (lambda results, run: run["timings"]["none"].pop("rope"), "none in run 0 of 85M has no rope to compare with"),
    (lambda results, run: run["timings"]["none"].update(content=3), f"{PLACE} should be"),
    (lambda results, run: content(run).pop("steps_ms"), f"steps_ms of {PLACE} should be a list"),
    (lambda results, run: content(run).update(steps_ms=[]), f"steps_ms of {PLACE} should be a list of one or more"),
    (lambda results, run: content(run).update(steps_ms=[1, -1]), f"steps_ms of {PLACE}"),
    (lambda results, run: content(run).update(steps_ms=[1, True]), f"steps_ms of {PLACE}"),
    (lambda results, run: content(run).update(median_ms=0), f"median_ms of {PLACE} is 0, not a positive number"),
    (lambda results, run: content(run).update(median_ms=None), f"median_ms of {PLACE} is None"),
    (lambda results, run: content(run).update(mean_ms=1e300), f"mean_ms of {PLACE} is 1e+300"),
    (lambda results, run: content(run).update(peak_bytes=0), f"peak_bytes of {PLACE} is 0"),
    (lambda results, run: content(run).update(parameters=1.5), f"parameters of {PLACE} is 1.5"),
    (lambda results, run: content(run).update(overhead_percent="low"), f"overhead_percent of {PLACE} is 'low'"),
    (lambda results, run: content(run).update(overhead_of_means_percent=-100), f"overhead_of_means_percent of {PLACE}"),
    (lambda results, run: failed(run).update(failed=1), "failed of content:competition=1, none in run 0 of 85M is 1"),
    (lambda results, run: failed(run).update(failed=""), "is '', not the reason in words"),
    (lambda results, run: failed(run).update(median_ms=4), "failed, and has median_ms all the same"),
    (lambda results, run: run.update(batch=0), "batch in run 0 of 85M is 0, not a whole number from 1 on"),
    (lambda results, run: run.update(length="long"), "length in run 0 of 85M is 'long'"),
    (lambda results, run: run.update(environment="here"), "environment in run 0 of 85M should be"),
]


@pytest.mark.parametrize(("change", "problem"), REFUSED)
def test_a_damaged_file_is_refused_with_the_place(tmp_path: Path, change: Change, problem: str) -> None:
    path = tmp_path / "results.json"
    data = changed(change)
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match="is not a result file of a timing experiment") as caught:
        read_results(path)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError):
        write_report(data, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]
