"""A result file with anything in any place: a report, or a sentence that names the file."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contentrope.cli.report import missing_runs
from contentrope.errors import InputError
from contentrope.reports import read_results
from contentrope.reports.known import experiment_of
from contentrope.reports.read import variants_of
from contentrope.results import read_json, write_json
from tests.reports.facts import made_up as facts
from tests.reports.growth import made_up as growth
from tests.reports.retrofit import made_up as retrofit
from tests.reports.timing import made_up as timing

RESULTS = {
    "growth": growth.with_details(growth.made_results()),
    "facts": facts.with_details(facts.made_results(seeds=1)),
    "retrofit": retrofit.made_results(),
    "timing": timing.made_results(),
}
TRIED = 120
"""Of thousands of places and values, always the same ones."""
MISSING = object()
ODD = [MISSING, None, True, -1, 0, 10**30, 1e308, "", "x", "\ud800", [], [[]], {}, {"": {}}, [None], {"x": []}]
Place = tuple[str | int, ...]


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Every place in a tree, of a list the first alone: the others are read as it is."""
    yield place
    inner = value.items() if isinstance(value, dict) else list(enumerate(value))[:1] if isinstance(value, list) else ()
    for name, part in inner:
        yield from places(part, (*place, name))


def with_odd(results: Any, place: Place, odd: Any) -> Any:
    if not place:
        return None if odd is MISSING else odd
    changed = copy.deepcopy(results)
    part = changed
    for name in place[:-1]:
        part = part[name]
    if odd is MISSING:
        del part[place[-1]]
    else:
        part[place[-1]] = odd
    return changed


def read_whole(path: Path) -> None:
    results = read_results(path)
    missing_runs(results)
    if variants_of(results):
        experiment = experiment_of(results)
        experiment.main_tables(results)
        experiment.closing_words(results)
        experiment.document(results, [])


@pytest.mark.parametrize("kind", RESULTS)
def test_any_value_in_any_place_is_read_or_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    whole = json.loads(json.dumps(RESULTS[kind]))
    everywhere = [(place, number) for place in places(whole) for number in range(len(ODD))]
    read, named = 0, True
    for place, number in random.Random(kind).sample(everywhere, TRIED):
        odd = ODD[number]
        path.write_text(json.dumps(with_odd(whole, place, odd)))
        try:
            read_whole(path)
            read += 1
        except InputError as error:
            named &= str(path) in str(error)
        except Exception as error:
            raise AssertionError(f"{odd!r} at {place}") from error
    assert named
    assert read > 10, "most places may hold something else"


def test_settings_of_the_original_that_are_no_object_are_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "results.json", with_odd(RESULTS["retrofit"], ("config", "pretraining"), "x"))
    with pytest.raises(InputError, match=r"results\.json .*config\.pretraining"):
        read_whole(tmp_path / "results.json")


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000, '{"a": NaN}', "[-Infinity]", "", "{", "\ufeff{}", '"\\u'],
    ids=lambda text: text[:12],
)  # fmt: skip
def test_a_file_that_is_no_json_of_ours_is_refused_by_its_name(text: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"odd\.json"):
        read_json(path)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write_json(tmp_path / "results.json", RESULTS["facts"])
    read_whole(tmp_path / "results.json")
