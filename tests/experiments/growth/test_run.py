"""The context-growth experiment: complete results, settings that are checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import contentrope as cr
from contentrope.corpora import CharVocabulary
from contentrope.errors import CheckpointError, InputError
from contentrope.evaluation.perplexity import perplexity
from contentrope.results import finite_or_none, read_json, write_json
from contentrope.text_model import load_text_model, training_text_of
from contentrope.training import read_metrics
from experiments.growth.config import PRESETS
from experiments.growth.run import corpus_of
from experiments.models import folder_of
from tests.experiments.growth.runs import TINY, Recorder, as_json, perplexities, run


def test_results_hold_everything_that_decided_them(tmp_path: Path) -> None:
    results = run(TINY, tmp_path, Recorder(), preset="tiny")
    assert read_json(tmp_path / "results.json") == as_json(results, tmp_path)
    assert set(results) == {"experiment", "preset", "config", "corpus", "environment", "seconds", "variants"}
    assert (results["experiment"], results["preset"]) == ("growth", "tiny")
    assert results["config"]["training"]["steps"] == 4
    assert results["config"]["model"] == {"dim": 8, "layers": 1, "heads": 2, "dropout": 0.0, "attention_dropout": 0.0}
    assert len(results["corpus"]["sha256"]) == 64
    assert results["environment"]["torch"]
    assert results["seconds"] > sum(entry["runs"]["0"]["training_seconds"] for entry in results["variants"].values())
    more = run(replace(TINY, seeds=2), tmp_path, Recorder(), preset="tiny")
    assert more["seconds"] > results["seconds"], "of all commands together"
    for name in TINY.variants:
        found = results["variants"][name]["runs"]["0"]
        assert set(found["perplexity"]) == {"16", "32"}
        assert min(found["final_loss"], found["training_seconds"], found["evaluation_seconds"]) > 0
        assert (found["acceleration"], found["environment"]["device"]) == ("none", "cpu")
        assert found["model"]["scheme"] == name
        assert len(found["model"]["terminators"]) == 1


def test_every_run_leaves_its_model_and_its_course(tmp_path: Path) -> None:
    results = run(replace(TINY, variants=("content:competition=1,base=500",)), tmp_path, Recorder())
    (found,) = (entry["runs"]["0"] for entry in results["variants"].values())
    folder = folder_of(tmp_path, "content:competition=1,base=500", 0)
    model, vocabulary = load_text_model(folder)
    corpus = corpus_of(TINY)
    assert vocabulary == corpus.vocabulary
    assert training_text_of(folder) == corpus.description
    assert (model.config.options, model.config.rotary.base) == ({"competition": 1}, 500)
    assert sum(p.numel() for p in model.parameters()) == found["parameters"]
    again = perplexity(model, corpus.held_out, 32, max_tokens=TINY.scored_tokens(len(corpus.held_out)))
    assert again == pytest.approx(found["perplexity"]["32"], rel=1e-6)
    assert read_metrics(folder / "metrics.jsonl")[-1]["step"] == 4
    assert not (folder / "checkpoint").exists()


def test_seeds_are_different_runs_and_the_same_every_time(tmp_path: Path) -> None:
    config = replace(TINY, variants=("content", "random"), seeds=2)
    first = perplexities(run(config, tmp_path / "a", Recorder()))
    assert first["content"]["0"] != first["content"]["1"]
    torch.rand(3)  # where the random numbers of the process stand plays no part
    assert perplexities(run(config, tmp_path / "b", Recorder())) == first
    alone = perplexities(run(replace(config, seeds=1), tmp_path / "c", Recorder()))
    assert alone["random"]["0"] == first["random"]["0"]


def test_very_long_windows_are_for_the_first_seed_alone(tmp_path: Path) -> None:
    results = run(replace(TINY, variants=("rope",), seeds=2, once=(128,)), tmp_path, Recorder())
    runs = results["variants"]["rope"]["runs"]
    assert set(runs["0"]["perplexity"]) == {"16", "32", "128"}
    assert set(runs["1"]["perplexity"]) == {"16", "32"}


def test_distant_text_is_measured_when_asked(tmp_path: Path) -> None:
    config = replace(TINY, variants=("rope",), characters=16_000, distant=600)
    found = run(config, tmp_path, Recorder())["variants"]["rope"]["runs"]["0"]
    assert found["by_position"]["edges"][-1] == 600
    assert (found["distant"]["length"], found["distant"]["near"]) == (600, 512)
    assert set(found["distant"]["perplexity"]) == {"as written", "shuffled", "deleted", "replaced"}
    assert "distant" not in run(replace(config, distant=0), tmp_path / "b", Recorder())["variants"]["rope"]["runs"]["0"]


def test_a_search_never_touches_the_held_out_text(tmp_path: Path) -> None:
    """Two texts that differ in their last tenth alone, and give the same numbers."""
    lines = "".join(f"line {number % 7} of many\n" for number in range(500))
    cut = int(len(lines) * 0.9)
    found = []
    for name, rest in (("a", lines[cut:]), ("b", "?" * (len(lines) - cut))):
        (tmp_path / f"{name}.txt").write_text(lines[:cut] + rest)
        config = replace(TINY, corpus=str(tmp_path / f"{name}.txt"), characters=None, search=True)
        found.append(run(config, tmp_path / name, Recorder()))
    assert perplexities(found[0]) == perplexities(found[1])
    assert found[0]["corpus"]["search_share"] == 0.1
    other = run(replace(config, search=False), tmp_path / "c", Recorder())
    assert perplexities(other) != perplexities(found[1])


def test_numbers_json_cannot_hold_become_null() -> None:
    found = finite_or_none({"perplexity": [1.5, float("inf")], "tokens": 3, "inner": {"x": float("nan")}})
    assert found == {"perplexity": [1.5, None], "tokens": 3, "inner": {"x": None}}


def test_every_length_scores_the_same_characters(tmp_path: Path) -> None:
    config = replace(TINY, lengths=(48, 16))
    assert config.scored_tokens(400) == 384  # eight windows of 48, of the 399 that can be scored
    corpus = corpus_of(config)
    results = run(replace(config, variants=("nope",)), tmp_path, Recorder())
    model, _ = load_text_model(folder_of(tmp_path, "nope", 0))
    value = perplexity(model, corpus.held_out[: config.scored_tokens(400) + 1], 16)
    assert results["variants"]["nope"]["runs"]["0"]["perplexity"]["16"] == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variants": ()}, "variants must name one or more different values"),
        ({"variants": ("rope", "rope")}, "variants must name one or more different values"),
        ({"variants": ("telepathy",)}, "unknown scheme 'telepathy'.*rope"),
        ({"variants": ("content:competition",)}, "option=value"),
        ({"lengths": ()}, "lengths must name"),
        ({"lengths": (0, 1)}, "lengths must be at least 1"),
        ({"once": (0,)}, "lengths must be at least 1"),
        ({"seeds": 0}, "seeds must be an integer of at least 1, got 0"),
        ({"seeds": True}, "seeds must be an integer of at least 1, got True"),
        ({"distant": -1}, "distant -1"),
        ({"distant": 512}, "distant must be 0 or more than 512"),
    ],
)
def test_senseless_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(TINY, **settings)


@pytest.mark.parametrize("settings", [{"lengths": (16, 1024)}, {"once": (400,)}, {"lengths": (250,), "distant": 700}])
def test_windows_that_do_not_fit_are_refused_before_training(tmp_path: Path, settings: dict[str, Any]) -> None:
    recorder = Recorder()
    with pytest.raises(InputError, match="characters do not fit"):
        run(replace(TINY, **settings), tmp_path, recorder)
    assert recorder.events == []


def test_no_jobs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="jobs must be at least 1, got 0"):
        run(TINY, tmp_path, Recorder(), jobs=0)


def test_presets_make_models() -> None:
    vocabulary = CharVocabulary.from_text("to be\n")
    for config in PRESETS.values():
        for variant in config.variants:
            cr.schemes.make(config.model_of(variant, vocabulary))


def test_a_model_and_a_vocabulary_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    model = cr.Transformer(cr.ModelConfig(vocab_size=9, dim=16, layers=1, heads=2, terminators=(0,)))
    cr.save(model, tmp_path)
    with pytest.raises(CheckpointError, match=r"no vocabulary\.json"):
        load_text_model(tmp_path)
    write_json(tmp_path / "vocabulary.json", CharVocabulary.from_text("to be\n").to_dict())
    with pytest.raises(CheckpointError, match="has 6 characters, the model 9"):
        load_text_model(tmp_path)
    write_json(tmp_path / "vocabulary.json", {"letters": 3})
    with pytest.raises(CheckpointError, match="is damaged"):
        load_text_model(tmp_path)


def test_first_weights_may_be_those_of_pytorch(tmp_path: Path) -> None:
    small = replace(TINY, variants=("content",), training=replace(TINY.training, steps=1, learning_rate=1e-9))
    spread = {}
    for kind in ("small", "torch"):
        run(replace(small, initialisation=kind), tmp_path / kind, Recorder())
        model, *_ = load_text_model(folder_of(tmp_path / kind, "content", 0) / "model")
        spread[kind] = model.embedding.weight.std().item()
    assert spread["small"] < 0.05 < 0.7 < spread["torch"]
