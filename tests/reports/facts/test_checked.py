"""A damaged or foreign result file is refused, by name and place."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contentrope.errors import InputError
from contentrope.reports import read_results, write_report
from contentrope.reports.checked import check_results
from tests.reports.facts.made_up import HITS, ROWS, made_addresses, made_inside, made_results, with_details

ROW = ROWS[0]
Change = Callable[[dict[str, Any], dict[str, Any]], object]


def changed(change: Change) -> dict[str, Any]:
    results = with_details(made_results({"content": HITS["content"]}, seeds=1))
    change(results, results["variants"]["content"]["runs"]["0"])
    return results


def test_a_whole_file_is_taken() -> None:
    check_results(changed(lambda results, run: None))
    check_results(made_results({}))


@pytest.mark.parametrize("name", ["", "growth", "x" * 1000])
def test_another_experiment_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(InputError, match=r"experiment is '.{0,40}', and there are reports of shakespeare and facts"):
        check_results(made_results() | {"experiment": name})


REFUSED: list[tuple[Change, str]] = [
    (lambda results, run: results.update(corpus=None), "corpus should be a JSON object"),
    (lambda results, run: results["variants"].update(rope=[]), "variant rope should be"),
    (lambda results, run: results["variants"].update(rope={"runs": {"0": 3}}), "run 0 of rope should be"),
    (lambda results, run: results["config"].update(seeds="all"), "config.seeds is 'all'"),
    (lambda results, run: results["config"].update(variants="rope"), "config.variants is 'rope'"),
    (lambda results, run: results["config"].update(facts=[1]), "config.facts is [1], not the least and the most"),
    (lambda results, run: results["config"].update(facts=5), "config.facts is 5, not a list of int"),
    (lambda results, run: results["config"].update(scaling=[4, "x"]), "config.scaling is [4, 'x'], not a list of int"),
    (lambda results, run: results["config"].update(distractors=-1), "config.distractors is -1"),
    (lambda results, run: results["config"].update(examples="many"), "config.examples is 'many'"),
    (lambda results, run: run.pop("rows"), "rows in run 0 of content should be"),
    (lambda results, run: run["rows"].update(other={}), "rows in run 0 of content has 'other', which is none of"),
    (lambda results, run: run["rows"].update({ROW: 1}), f"{ROW} in run 0 of content should be"),
    (lambda results, run: run["rows"][ROW].update(hit5=1.2), f"hit5 of {ROW} in run 0 of content is 1.2, not a share"),
    (lambda results, run: run["rows"][ROW].pop("hit5"), f"hit5 of {ROW} in run 0 of content is None"),
    (lambda results, run: run["rows"][ROW].update(perplexity=0), f"perplexity of {ROW} in run 0 of content is 0"),
    (lambda results, run: run["rows"][ROW].pop("perplexity"), f"perplexity of {ROW} in run 0 of content is None"),
    (lambda results, run: run["rows"][ROW].update(examples=1.5), f"examples of {ROW} in run 0 of content is 1.5"),
    (lambda results, run: run.update(final_loss="low"), "final_loss in run 0 of content is 'low'"),
    (lambda results, run: run.update(model=3), "model in run 0 of content should be"),
    (lambda results, run: run.update(exponents=[1]), "exponents in run 0 of content should be"),
    (lambda results, run: run.update(exponents={"x": {}}), "exponents in run 0 of content has 'x', which is not a"),
    (lambda results, run: run.update(exponents={"nan": {}}), "has 'nan', which is not a finite number"),
    (lambda results, run: run.update(exponents={"1": {"other": {}}}), "1 of exponents in run 0 of content has 'other'"),
    (lambda results, run: run.update(exponents={"1": {ROW: {}}}), f"hit5 of {ROW} in 1 of exponents in run 0"),
    (lambda results, run: run.update(scaling=[4]), "scaling in run 0 of content should be"),
    (lambda results, run: run["scaling"].update(x={}), "scaling in run 0 of content has 'x' distractors"),
    (lambda results, run: run["scaling"].update({"0": {}}), "has '0' distractors"),
    (
        lambda results, run: run["scaling"].update({"4": {"chain9": {}}}),
        "scaling in run 0 of content has 'chain9'",
    ),
    (lambda results, run: run["scaling"]["4"].update(chain2={}), "hit5 of chain2, 4 of scaling in run 0 of content"),
    (lambda results, run: run["order"].pop("permutations"), "order in run 0 of content needs"),
    (lambda results, run: run["order"].update(answers_changed=37), "order in run 0 of content needs"),
    (lambda results, run: run["order"].update(largest_change=-1), "order in run 0 of content needs"),
    (lambda results, run: run.update(losses={}), "losses in run 0 of content should be"),
    (lambda results, run: run.update(losses=[[1, 2, 3]]), "losses in run 0 of content should be"),
    (lambda results, run: run.update(losses=[[1, None]]), "losses in run 0 of content should be"),
    (lambda results, run: run.update(inside=3), "inside in run 0 of content should be"),
    (lambda results, run: run["inside"].update(tokens=[1]), "inside in run 0 of content needs tokens and unit_texts"),
    (
        lambda results, run: run["inside"].update(unit_texts=[]),
        "inside in run 0 of content needs tokens and unit_texts",
    ),
    (lambda results, run: run["inside"].update(scored=[9999]), "inside in run 0 of content needs scored"),
    (lambda results, run: run["inside"].update(scored=[]), "inside in run 0 of content needs scored"),
    (lambda results, run: run["inside"].update(asked=6), "inside in run 0 of content needs asked"),
    (lambda results, run: run["inside"].update(attention=[]), "attention of inside in run 0 of content should be"),
    (lambda results, run: run["inside"]["attention"].append([[0.5]]), "attention of inside in run 0 of content needs"),
    (lambda results, run: run["inside"]["attention"][0][0].__setitem__(0, 7), "6 shares from 0 to 1"),
    (lambda results, run: run["addresses"].update(points=[]), "addresses in run 0 of content needs points"),
    (lambda results, run: run["addresses"].update(points=[[1]]), "addresses in run 0 of content needs points"),
    (lambda results, run: run["addresses"]["relations"].pop(), "addresses in run 0 of content needs relations"),
    (lambda results, run: run["addresses"].update(explained=[2, 0]), "addresses in run 0 of content has explained"),
]


@pytest.mark.parametrize(("change", "problem"), REFUSED)
def test_a_damaged_file_is_refused_with_the_place(tmp_path: Path, change: Change, problem: str) -> None:
    path = tmp_path / "results.json"
    data = changed(change)
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match="is not a result file of an experiment in retrieval from facts") as caught:
        read_results(path)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError):
        write_report(data, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]


def test_an_enormous_picture_is_refused() -> None:
    inside = made_inside()
    inside["unit_texts"] *= 100_000
    with pytest.raises(InputError, match="at most 100,000 numbers"):
        check_results(changed(lambda results, run: run.update(inside=inside)))
    with pytest.raises(InputError, match="needs points"):
        check_results(changed(lambda results, run: run.update(addresses=made_addresses(facts=3000))))
