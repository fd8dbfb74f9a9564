"""The retrofit experiment: what is measured, kept, continued."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from contentrope.errors import CheckpointError, InputError
from contentrope.evaluation.perplexity import perplexity
from contentrope.hf.finetune import CausalLM
from contentrope.hf.loading import load_any
from contentrope.results import read_json
from contentrope.training import StepReport, Windows
from experiments import runner
from experiments.models import folder_of
from experiments.retrofit.config import RetrofitConfig
from experiments.retrofit.models import Pretraining, train_originals
from experiments.retrofit.run import Retrofit
from tests.experiments.growth.runs import Recorder, as_json, perplexities
from tests.experiments.retrofit.tiny import TINY, saved_original


def run(config: RetrofitConfig, *where: Any) -> dict[str, Any]:
    return runner.run(Retrofit(config), *where)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of variant, finished."""
    out = tmp_path_factory.mktemp("whole")
    variants = (
        *TINY.variants,
        "content",
        "content:train=lora",
        "content:start=back,train=nothing",
        "rope",
        "pi:factor=4",
    )
    run(replace(TINY, variants=variants), out, Recorder())
    return out


def test_every_variant_is_measured_at_every_length(whole: Path) -> None:
    results = read_json(whole / "results.json")
    config = Retrofit(TINY)
    assert results["config"] | {"variants": None} == as_json(config.settings(), whole) | {"variants": None}
    assert results["corpus"]["training"] == results["corpus"]["training_tokens"] == 3_600
    for variant, entry in results["variants"].items():
        found = entry["runs"]["0"]
        assert set(found["perplexity"]) == {"16", "64"}
        assert found["environment"]["transformers"]
        trains = variant not in ("untouched", "content:start=back,train=nothing")
        assert ("trained_parameters" in found) == trains
    values = perplexities(results)
    assert values["rope"]["0"] != values["untouched"]["0"]
    assert values["content:positions=gated"]["0"] != values["content"]["0"]
    assert not list(whole.rglob("checkpoint"))


@pytest.mark.parametrize(
    "variant",
    ["untouched", "content:positions=gated", "content:train=lora", "content:start=back,train=nothing", "pi:factor=4"],
)
def test_the_saved_model_is_the_one_that_was_measured(variant: str, whole: Path) -> None:
    folder = folder_of(whole, variant, 0) if variant != "untouched" else whole / "originals" / "seed-0"
    model, _ = load_any(str(folder / "model"))
    experiment = Retrofit(TINY)
    scored = TINY.scored_tokens(len(experiment.ids.held_out))
    stored = read_json(whole / "results.json")["variants"][variant]["runs"]["0"]["perplexity"]
    for length in TINY.lengths:
        found = perplexity(CausalLM(model), experiment.ids.held_out, length, max_tokens=scored)
        assert stored[str(length)] == pytest.approx(found, rel=1e-5)


def test_what_was_stopped_goes_on_where_it_was(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(TINY, tmp_path, Recorder(interrupt=("untouched", 7)))
    assert not (tmp_path / "results.json").exists()
    second = Recorder(interrupt=("content:positions=gated", 3))
    with pytest.raises(KeyboardInterrupt):
        run(TINY, tmp_path, second)
    assert second.of("trained")[0] == ("untouched", 8)
    third = Recorder()
    results = run(TINY, tmp_path, third)
    assert third.of("trained") == [("content:positions=gated", 4)]
    expected = perplexities(read_json(whole / "results.json"))
    assert perplexities(results) == {name: expected[name] for name in TINY.variants}


def test_seeds_share_a_model_but_no_weights(whole: Path, tmp_path: Path) -> None:
    """One stepper serves all seeds of a variant: the second seed must be as if it were alone."""
    both = run(replace(TINY, seeds=2), tmp_path / "both", Recorder())
    found = perplexities(both)
    expected = perplexities(read_json(whole / "results.json"))
    for variant in TINY.variants:
        assert found[variant]["0"] == expected[variant]["0"]
        assert found[variant]["0"] != found[variant]["1"]
    alone = tmp_path / "alone"
    (alone / "originals").mkdir(parents=True)
    experiment = Retrofit(TINY)
    told: list = []
    experiment.measure("content:positions=gated", [1], alone, "cpu", told.append)
    assert told[-1].run["perplexity"] == found["content:positions=gated"]["1"]


def test_of_several_processes_each_takes_another_original(tmp_path: Path) -> None:
    """What another process is at is left to it, and waited for when there is nothing else to do."""
    experiment, order = Retrofit(TINY), list[int]()
    (tmp_path / "originals").mkdir()
    of_another = FileLock(tmp_path / "originals" / ".seed-0.lock")
    of_another.acquire()

    def tell(seed: int, report: StepReport) -> None:
        order.append(seed)
        if seed == 1 and report.step == report.steps:
            of_another.release()  # the other one was stopped, and left it undone

    windows = Windows(experiment.ids.training, TINY.length)
    plan = Pretraining(TINY, experiment.tokenizer, windows, experiment.text.description, tmp_path)
    train_originals(plan, [0, 1], "cpu", tell)
    assert list(dict.fromkeys(order)) == [1, 0]
    before = len(order)
    train_originals(plan, [0, 1], "cpu", tell)
    assert len(order) == before, "trained again"
    other = replace(plan, config=replace(TINY, pretraining=replace(TINY.pretraining, steps=30)))
    with pytest.raises(CheckpointError, match=r"another original \(pretraining.steps: 30 here, 20 in the file\)"):
        train_originals(other, [0], "cpu", tell)


def test_a_checkpoint_of_ones_own_is_converted(tmp_path: Path) -> None:
    folder = saved_original(tmp_path / "mine")
    (tmp_path / "text.txt").write_text("abc de\nfgh\nab\n" * 400)
    config = replace(TINY, model=str(folder), text=(str(tmp_path / "text.txt"),), characters=None)
    results = run(config, tmp_path / "out", Recorder())
    assert not (tmp_path / "out" / "originals").exists()
    assert results["corpus"]["name"] == "text.txt"
    model, _ = load_any(str(folder))
    experiment = Retrofit(config)
    scored = config.scored_tokens(len(experiment.ids.held_out))
    with torch.no_grad():
        found = perplexity(CausalLM(model), experiment.ids.held_out, 16, max_tokens=scored)
    assert results["variants"]["untouched"]["runs"]["0"]["perplexity"]["16"] == pytest.approx(found)
    assert results["variants"]["content:positions=gated"]["runs"]["0"]["perplexity"]["64"] < found


def test_what_does_not_fit_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    recorder = Recorder()
    with pytest.raises(InputError, match="windows of 1600 tokens do not fit: the text leaves 399 to score"):
        run(replace(TINY, times=(100,)), tmp_path, recorder)
    with pytest.raises(InputError, match="there is no folder '/nowhere/model'"):
        run(replace(TINY, model="/nowhere/model"), tmp_path, recorder)
    assert recorder.events == []
    assert not list(tmp_path.iterdir())
