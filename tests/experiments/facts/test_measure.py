"""The facts experiment from end to end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contentrope.checkpoint import load
from contentrope.errors import InputError
from contentrope.model import Transformer
from contentrope.results import read_json
from experiments.facts import KINDS, ROWS
from experiments.facts.config import PRESETS, FactsConfig, without_memory
from experiments.facts.run import SHOWN, Facts
from experiments.facts.scoring import order_changes, score, two_directions
from experiments.initialisation import Initialisation
from experiments.models import folder_of
from tests.experiments.facts.tiny import TINY, run
from tests.experiments.growth.runs import Recorder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("facts")
    return out, run(TINY, out, Recorder(), preset="tiny")


def test_the_result_file_holds_every_row_and_setting(finished: tuple[Path, dict[str, Any]]) -> None:
    out, results = finished
    stored = read_json(out / "results.json")
    assert stored["experiment"] == "facts"
    assert stored["corpus"] == results["corpus"]
    assert (stored["corpus"]["facts"], stored["corpus"]["sentences"]) == (134_935, 6_116_520)
    assert stored["config"]["model"]["dim"] == 8
    for variant in TINY.variants:
        found = stored["variants"][variant]["runs"]["0"]
        assert set(found["rows"]) == set(ROWS)
        assert len(found["rows"]) == 12
        assert all(row["examples"] == 6 and 0 <= row["hit5"] <= 1 for row in found["rows"].values())
        assert {(count, kind) for count, by_kind in found["scaling"].items() for kind in by_kind} == {
            (count, kind) for count in ("2", "5") for kind in KINDS
        }
        assert [step for step, _ in found["losses"]][-1] == 4
        assert found["order"]["examples"] == 4
        assert found["parameters"] > 0
        assert found["backend"] == "auto", "what it was trained with, on a CPU"


def test_the_look_inside_is_about_the_example_it_shows(finished: tuple[Path, dict[str, Any]]) -> None:
    runs = {variant: entry["runs"]["0"] for variant, entry in finished[1]["variants"].items()}
    for found in runs.values():
        inside = found["inside"]
        assert "".join(inside["tokens"]) == "".join(inside["unit_texts"])
        assert len(inside["unit_texts"]) == 6
        given, answer = inside["unit_texts"][-1], "".join(inside["tokens"][i] for i in inside["scored"])
        assert answer in given
        assert f" {answer}" in inside["unit_texts"][inside["asked"]]
        for layer in inside["attention"]:
            assert len(layer) == len(inside["scored"])
            assert all(sum(shares) == pytest.approx(1, abs=1e-5) for shares in layer)
    addresses = runs["content:competition=1"]["addresses"]
    assert len(addresses["points"]) == len(addresses["relations"])
    assert len(set(addresses["relations"])) == 25
    assert "addresses" not in runs["rope"]


def test_the_same_command_trains_nothing_again_and_seeds_can_be_added(finished: tuple[Path, dict[str, Any]]) -> None:
    out, results = finished
    again = Recorder()
    assert run(TINY, out, again)["variants"] == results["variants"]
    assert again.of("trained") == []
    more = run(replace(TINY, seeds=2, variants=("rope",)), out, Recorder())
    assert "inside" not in more["variants"]["rope"]["runs"]["1"], "one look is enough"
    with pytest.raises(InputError, match="examples: 7 here, 6 in the file"):
        run(replace(TINY, examples=7), out, Recorder())


def test_scores_are_of_the_model_that_was_saved(finished: tuple[Path, dict[str, Any]]) -> None:
    out, results = finished
    row, experiment = "same entities, chain3, test", Facts(TINY)
    model = load(folder_of(out, "rope", 0) / "model")
    found = score(model, experiment.examples(experiment.sampler(), row)).summary()
    stored = results["variants"]["rope"]["runs"]["0"]["rows"][row]
    assert found["perplexity"] == pytest.approx(stored["perplexity"])


def lively(variant: str, config: FactsConfig = TINY) -> tuple[Facts, Transformer]:
    """A model whose every weight matters, as a trained one's."""
    experiment = Facts(config)
    torch.manual_seed(0)
    model = Transformer(config.model_of(variant, experiment.sampler()))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return experiment, model


def test_what_heads_learned_is_recorded() -> None:
    experiment, model = lively("content:competition=1,sharpness=0.5,learn_sharpness=true")
    with torch.no_grad():
        model.scheme.reader.sharpness.learned.fill_(0.75)
    found = experiment.evaluate("content", 1, model, experiment.sampler(), lambda event: None)
    assert found["learned_by_head"] == {"sharpness": [[0.75]] * TINY.model.layers}, "the exponent is fixed"
    experiment, model = lively("rope")
    assert "learned_by_head" not in experiment.evaluate("rope", 1, model, experiment.sampler(), lambda event: None)


@pytest.mark.parametrize("variant", ["content", "content:competition=1,learn_competition=true", "local"])
def test_rows_under_another_exponent_are_those_of_a_model_that_has_it(variant: str) -> None:
    experiment, model = lively(variant, replace(TINY, exponents=(0.0, 2.5), scaling=(), order=0))
    sampler = experiment.sampler()

    def perplexities(of: Transformer) -> list[float]:
        return [score(of, experiment.examples(sampler, row)).summary()["perplexity"] for row in ROWS]

    before = perplexities(model)
    found = experiment.evaluate(variant, 1, model, sampler, lambda event: None)["exponents"]
    assert list(found) == ["0", "2.5"]
    with_it = Transformer(TINY.model_of(f"{variant.partition(':')[0]}:competition=2.5", sampler))
    with_it.load_state_dict({name: x for name, x in model.state_dict().items() if "competition" not in name})
    under = {exponent: [row["perplexity"] for row in by_row.values()] for exponent, by_row in found.items()}
    assert under["2.5"] == pytest.approx(perplexities(with_it), rel=1e-4)
    assert under["0"] != pytest.approx(under["2.5"], rel=1e-4), "among several facts it matters"
    assert perplexities(model) == before, "its own exponent is back"


def test_one_fact_at_a_time_knows_nothing_of_the_exponent() -> None:
    """So one training serves all exponents; a second unit before the sentence would change that."""
    for layout, alike in (("end", True), ("bar", True), ("apart", False)):
        config = replace(TINY, layout=layout, exponents=(3.0,), scaling=(), order=0)  # type: ignore[arg-type]
        experiment, model = lively("content", config)
        found = experiment.evaluate("content", 1, model, experiment.sampler(), lambda event: None)
        single = [title for title in found["rows"] if title.startswith("single fact")]
        assert len(single) == 4
        assert all((found["rows"][title] == found["exponents"]["3"][title]) == alike for title in single), layout


def test_schemes_without_an_exponent_are_scored_once() -> None:
    experiment, model = lively("rope", replace(TINY, exponents=(1.0,)))
    assert "exponents" not in experiment.evaluate("rope", 1, model, experiment.sampler(), lambda event: None)


@pytest.mark.parametrize("wrong", [(float("nan"),), (float("inf"),), (1.0, 1.0)])
def test_exponents_that_are_no_numbers_or_the_same_are_refused(wrong: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="exponents must"):
        replace(TINY, exponents=wrong)


def test_memory_units_are_read_in_any_order_and_others_are_not() -> None:
    config = replace(TINY, order=20, model=replace(TINY.model, layers=2, dim=24))
    changes = {}
    for variant in ("content:competition=1,memory=true", "content:competition=1", "rope"):
        experiment, model = lively(variant, config)
        sampler = experiment.sampler()
        drawn = experiment.examples(sampler, SHOWN, count=config.order)
        changes[variant] = order_changes(model, sampler, drawn, torch.Generator().manual_seed(99))
        assert next(model.parameters()).dtype == torch.float32
    free, content, rope = changes.values()
    assert (free["answers_changed"], free["permutations"]) == (0, 4)
    assert free["largest_change_float64"] < 1e-12
    assert free["largest_change"] < 1e-5 * free["largest_logit"]
    assert min(content["largest_change"], rope["largest_change"]) > 0.1
    assert rope["answers_changed"] > 0.5


def test_every_variant_and_seed_is_asked_the_same() -> None:
    experiment = Facts(TINY)
    row = list(ROWS)[-1]
    torch.manual_seed(1)
    first = experiment.examples(experiment.sampler(), row)
    torch.manual_seed(2)
    assert torch.equal(first.ids, experiment.examples(experiment.sampler(), row).ids)


def test_conditions_have_the_facts_they_name() -> None:
    experiment = Facts(TINY)
    for row in ROWS:
        drawn = experiment.examples(experiment.sampler(), row)
        assert drawn.facts.tolist() == [1 if row.startswith("single fact") else 5] * 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"facts": (0, 3)}, r"facts must be the fewest and the most .* got \(0, 3\)"),
        ({"facts": (4, 3)}, r"got \(4, 3\)"),
        ({"ramp": 1.5}, "ramp must be a share of training from 0 to 1, got 1.5"),
        ({"answers_after": 1.5}, "answers_after must be a share of training from 0 to 1, got 1.5"),
        ({"examples": 0}, "examples must be an integer of at least 1, got 0"),
        ({"order": -1}, "order must be an integer of at least 0, got -1"),
        ({"scaling": (4, 4)}, r"scaling must name one or more different values, got \(4, 4\)"),
        ({"scaling": (0,)}, r"scaling must be numbers of at least 1, got \(0,\)"),
        ({"variants": ()}, "variants must name one or more"),
        ({"variants": ("rope", "rope")}, "different"),
        ({"variants": ("content:memory=1",)}, "memory in 'content:memory=1' must be true or false"),
        ({"variants": ("rupe",)}, "unknown scheme 'rupe'"),
        ({"variants": ("rope",), "exponents": (0.5,)}, r"exponents \(0.5,\) are for models with addresses, .* of rope"),
    ],
)
def test_senseless_settings_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(TINY, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variants": ("content:kompetition=1",)}, "kompetition"),
        ({"variants": ("rope:memory=true",)}, "'rope:memory=true' cannot have memory units.*leave out memory=true"),
        ({"layout": "bar", "variants": ("content:memory=true",)}, "bar"),
        ({"distractors": 1000}, "1000"),
    ],
)
def test_what_cannot_be_run_stops_before_anything_is_trained(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    recorder = Recorder()
    with pytest.raises(InputError, match=message):
        run(replace(TINY, **change), tmp_path, recorder)
    assert recorder.events == []


def test_the_option_memory_may_stand_anywhere() -> None:
    assert without_memory("content:memory=true") == ("content", True)
    assert without_memory("content:competition=1,memory=true,noise=1") == ("content:competition=1,noise=1", True)
    assert without_memory("content:noise=1,memory=false") == ("content:noise=1", False)
    assert without_memory("alibi:slopes=[0.25]") == ("alibi:slopes=[0.25]", False)


def test_presets_are_what_the_paper_says() -> None:
    paper = PRESETS["paper"]
    assert (paper.model.dim, paper.model.layers, paper.model.heads) == (60, 3, 1)
    training = paper.training
    assert (training.steps, training.batch_size, training.learning_rate) == (100_000, 32, 5e-4)
    assert paper.facts == (1, 1)
    assert PRESETS["beyond"].facts == (1, 8)
    assert min(paper.examples, PRESETS["beyond"].examples) >= 1000
    for preset in PRESETS.values():
        Facts(preset).check()


def test_principal_directions_keep_distances_in_the_plane() -> None:
    torch.manual_seed(0)
    plane = torch.randn(50, 2, dtype=torch.float64) @ torch.randn(2, 9, dtype=torch.float64) + 3
    points, explained = two_directions(plane)
    found, expected = (torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist") for x in (points, plane))
    torch.testing.assert_close(found, expected)
    assert sum(explained) == pytest.approx(1)
    assert explained[0] >= explained[1]
    assert two_directions(torch.zeros(4, 3))[1] == [0, 0]


INITIAL = {
    "small": (0.02, 0.02, 0.0),
    "linear": (0.02, 8**-0.5 / 3**0.5, 0.0),
    "torch": (1.0, 8**-0.5 / 3**0.5, 0.0),
    "torch-all": (1.0, 8**-0.5 / 3**0.5, 8**-0.5 / 3**0.5),
}
"""Standard deviations: PyTorch's linear layers of 8 inputs begin uniformly between plus and minus 8 ** -0.5."""


@pytest.mark.parametrize("kind", INITIAL)
def test_models_are_initialised_as_asked_for(tmp_path: Path, kind: Initialisation) -> None:
    config = replace(TINY, variants=("content",), initialisation=kind, scaling=(), order=0, examples=1)
    config = replace(config, training=replace(config.training, steps=1, learning_rate=1e-9))
    run(config, tmp_path, Recorder())
    model = load(folder_of(tmp_path, "content", 0) / "model")
    weights = model.embedding.weight, model.blocks[0].query_key_value.weight, model.scheme.address.project.weight
    found = [weight.std().item() for weight in weights]
    assert found == pytest.approx(INITIAL[kind], rel=0.3, abs=1e-6)


def test_an_unknown_initialisation_is_refused() -> None:
    with pytest.raises(InputError, match="initialisation must be one of small, linear, torch, torch-all; got 'large'"):
        replace(TINY, initialisation="large")  # type: ignore[arg-type]
