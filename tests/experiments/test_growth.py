"""The context-growth experiment: complete results, and no work done twice."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import contentrope as cr
from contentrope.corpora import CharVocabulary
from contentrope.errors import CheckpointError, InputError
from contentrope.experiments.evaluation import perplexity
from contentrope.experiments.growth import PRESETS, GrowthConfig, ModelSize, jobs, run
from contentrope.experiments.growth.measure import Finished, corpus_of, finite_or_none, folder_of
from contentrope.experiments.saved import load_text_model, training_text_of
from contentrope.results import read_json, write_json
from contentrope.training import DivergedError, StepReport, TrainConfig, read_metrics

TINY = GrowthConfig(
    variants=("content", "rope"),
    corpus="stdlib",
    characters=4_000,
    length=16,
    lengths=(16, 32),
    model=ModelSize(dim=8, layers=1, heads=2),
    training=TrainConfig(steps=4, batch_size=2),
)


@dataclass
class Recorder:
    interrupt: tuple[str, int] | None = None
    events: list[tuple[Any, ...]] = field(default_factory=list)

    def planned(self, runs: int, kept: int, steps: int) -> None:
        self.events.append(("planned", runs, kept, steps))

    def kept(self, name: str) -> None:
        self.events.append(("kept", name))

    def trained(self, name: str, report: StepReport) -> None:
        self.events.append(("trained", name, report.step))
        if self.interrupt == (name, report.step):
            raise KeyboardInterrupt

    def evaluated(self, name: str, length: int, value: float | None) -> None:
        self.events.append(("evaluated", name, length))

    def finished(self, name: str, perplexity: Mapping[str, float | None]) -> None:
        self.events.append(("finished", name))

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        return [event[1:] for event in self.events if event[0] == kind]


def perplexities(results: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        variant: {seed: run["perplexity"] for seed, run in entry["runs"].items()}
        for variant, entry in results["variants"].items()
    }


def as_json(results: dict[str, Any], folder: Path) -> Any:
    """Results as JSON sees them: tuples become lists."""
    write_json(folder / "copy.json", results)
    return read_json(folder / "copy.json")


# --- what is written -------------------------------------------------------------------------------------------


def test_results_hold_everything_that_decided_them(tmp_path: Path) -> None:
    results = run(TINY, tmp_path, Recorder(), preset="tiny")
    assert read_json(tmp_path / "results.json") == as_json(results, tmp_path)
    assert set(results) == {"experiment", "preset", "config", "corpus", "environment", "variants"}
    assert (results["experiment"], results["preset"]) == ("shakespeare", "tiny")
    assert results["config"]["training"]["steps"] == 4
    assert results["config"]["model"] == {"dim": 8, "layers": 1, "heads": 2, "dropout": 0.0}
    assert len(results["corpus"]["sha256"]) == 64
    assert results["environment"]["torch"]
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


# --- stopping and going on -------------------------------------------------------------------------------------


def test_an_interrupted_run_continues_where_it_was(tmp_path: Path) -> None:
    expected = run(TINY, tmp_path / "whole", Recorder())
    with pytest.raises(KeyboardInterrupt):
        run(TINY, tmp_path / "parts", Recorder(interrupt=("rope", 3)))
    assert set(read_json(tmp_path / "parts" / "results.json")["variants"]) == {"content"}
    rest = Recorder()
    results = run(TINY, tmp_path / "parts", rest)
    assert rest.events[:3] == [("planned", 2, 1, 4), ("kept", "content"), ("trained", "rope", 4)]
    assert perplexities(results) == perplexities(expected)


def test_training_that_was_finished_is_not_lost_when_evaluation_is_interrupted(tmp_path: Path) -> None:
    class Impatient(Recorder):
        def evaluated(self, name: str, length: int, value: float | None) -> None:
            raise KeyboardInterrupt

    config = replace(TINY, variants=("rope",))
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path, Impatient())
    rest = Recorder()
    run(config, tmp_path, rest)
    assert rest.of("trained") == []
    assert rest.of("finished") == [("rope",)]


def test_a_result_that_cannot_be_written_keeps_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(TINY, variants=("rope",))

    def full(path: Path, data: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(sys.modules[run.__module__], "write_json", full)
    with pytest.raises(OSError, match="no space left"):
        run(config, tmp_path, Recorder())
    monkeypatch.undo()
    rest = Recorder()
    run(config, tmp_path, rest)
    assert rest.of("trained") == []


def test_a_finished_run_trains_nothing(tmp_path: Path) -> None:
    first = run(TINY, tmp_path, Recorder())
    again = Recorder()
    assert perplexities(run(TINY, tmp_path, again)) == perplexities(first)
    assert again.events == [("planned", 2, 2, 4), ("kept", "content"), ("kept", "rope")]


def test_variants_and_seeds_can_be_added_later(tmp_path: Path) -> None:
    run(replace(TINY, variants=("rope",)), tmp_path, Recorder())
    added = Recorder()
    run(replace(TINY, variants=("content:competition=1",)), tmp_path, added)
    stored = read_json(tmp_path / "results.json")
    assert set(stored["variants"]) == {"rope", "content:competition=1"}
    assert stored["config"]["variants"] == ["rope", "content:competition=1"]
    assert added.of("trained")[0] == ("content:competition=1", 1)
    more = Recorder()
    run(replace(TINY, variants=("rope",), seeds=2), tmp_path, more)
    assert more.of("kept") == [("rope, seed 0",)]
    assert more.of("finished") == [("rope, seed 1",)]
    stored = read_json(tmp_path / "results.json")
    assert stored["config"]["seeds"] == 2
    assert {name: set(entry["runs"]) for name, entry in stored["variants"].items()} == {
        "rope": {"0", "1"},
        "content:competition=1": {"0"},
    }
    # Asking for less later forgets nothing.
    assert run(replace(TINY, variants=("rope",)), tmp_path, Recorder())["config"]["seeds"] == 2


def test_results_of_another_run_are_not_overwritten(tmp_path: Path) -> None:
    run(TINY, tmp_path, Recorder())
    before = (tmp_path / "results.json").read_bytes()
    other = replace(TINY, training=replace(TINY.training, steps=5))
    with pytest.raises(InputError, match=r"config\.training\.steps: 5 here, 4 in the file.*another folder"):
        run(other, tmp_path, Recorder())
    assert (tmp_path / "results.json").read_bytes() == before


def test_a_checkpoint_of_other_windows_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(TINY, tmp_path, Recorder(interrupt=("content", 2)))
    with pytest.raises(CheckpointError, match="length: 8 here, 16 in the file"):
        run(replace(TINY, length=8), tmp_path, Recorder())


def test_two_commands_beside_each_other_lose_nothing(tmp_path: Path) -> None:
    class Beside(Recorder):
        """Starts the other command when this one has read the results so far."""

        def planned(self, runs: int, kept: int, steps: int) -> None:
            run(replace(TINY, variants=("rope",)), tmp_path, Recorder())

    run(replace(TINY, variants=("content",)), tmp_path, Beside())
    stored = read_json(tmp_path / "results.json")
    assert {name: list(entry["runs"]) for name, entry in stored["variants"].items()} == {
        "content": ["0"],
        "rope": ["0"],
    }
    assert set(stored["config"]["variants"]) == {"content", "rope"}


def test_another_corpus_is_noticed(tmp_path: Path) -> None:
    run(TINY, tmp_path, Recorder())
    stored = read_json(tmp_path / "results.json")
    stored["corpus"]["sha256"] = "0" * 64
    write_json(tmp_path / "results.json", stored)
    with pytest.raises(InputError, match=r"corpus\.sha256"):
        run(TINY, tmp_path, Recorder())


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        '{"experiment": "x"}',
        '{"experiment": "x", "config": 3, "corpus": 4, "variants": 5}',
        '{"experiment": "shakespeare", "config": {"seeds": [0], "variants": []}, "corpus": {}, "variants": {}}',
        '{"experiment": "shakespeare", "config": {"seeds": 1}, "corpus": {}, "variants": {}}',
        '{"experiment": "shakespeare", "config": {"seeds": 1}, "corpus": {}, "variants": {"rope": 3}}',
    ],
)
def test_a_foreign_file_is_not_overwritten(tmp_path: Path, content: str) -> None:
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(InputError, match="not a result file"):
        run(TINY, tmp_path, Recorder())
    assert (tmp_path / "results.json").read_text() == content


def test_a_misspelt_option_stops_the_run_before_it_trains(tmp_path: Path) -> None:
    recorder = Recorder()
    with pytest.raises(InputError, match="kompetition"):
        run(replace(TINY, variants=("rope", "content:kompetition=1")), tmp_path, recorder)
    assert recorder.events == []


def test_one_variant_that_diverges_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = jobs.measure

    def measure_or_diverge(config: GrowthConfig, variant: str, *rest: Any) -> None:
        if variant == "content":
            raise DivergedError("step 3: loss nan")
        measure(config, variant, *rest)

    monkeypatch.setattr(jobs, "measure", measure_or_diverge)
    with pytest.raises(DivergedError, match="content: step 3: loss nan"):
        run(TINY, tmp_path, Recorder())
    assert set(read_json(tmp_path / "results.json")["variants"]) == {"rope"}


# --- several at a time -----------------------------------------------------------------------------------------


def test_processes_give_the_same_numbers_and_stop_where_they_can_go_on(tmp_path: Path) -> None:
    expected = run(TINY, tmp_path / "one", Recorder())
    with pytest.raises(KeyboardInterrupt):
        run(TINY, tmp_path / "two", Recorder(interrupt=("rope", 2)), jobs=2)
    rest = Recorder()
    results = run(TINY, tmp_path / "two", rest, jobs=2)
    assert perplexities(results) == perplexities(expected)
    assert ("rope", 1) not in rest.of("trained"), "began anew"
    assert not list((tmp_path / "two").glob("runs/*/*/checkpoint"))


def test_processes_that_are_told_to_stop_finish_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process asked to stop gives up its training, but never a result."""

    class Given:
        told: list[Any] = []

        def put(self, event: Any) -> None:
            self.told.append(event)

        def is_set(self) -> bool:
            return True

    def measure(config: Any, variant: str, seeds: Any, corpus: Any, out: Any, device: str, tell: Any) -> None:
        tell(Finished(variant, 0, {}))
        tell(("trained", variant))

    monkeypatch.setattr(jobs._Process, "told", Given(), raising=False)
    monkeypatch.setattr(jobs._Process, "stop", Given(), raising=False)
    monkeypatch.setattr(jobs, "measure", measure)
    with pytest.raises(KeyboardInterrupt):
        jobs._measure_apart(TINY, "rope", [0], Path(), "cpu")
    assert Given.told == [Finished("rope", 0, {})]


def test_an_error_in_a_process_is_raised_here(tmp_path: Path) -> None:
    folder_of(tmp_path, "rope", 0).parent.mkdir(parents=True)
    folder_of(tmp_path, "rope", 0).write_text("a file where a folder should be")
    with pytest.raises(OSError, match="seed-0"):
        run(TINY, tmp_path, Recorder(), jobs=2)


# --- settings --------------------------------------------------------------------------------------------------


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


# --- saved models ----------------------------------------------------------------------------------------------


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


def test_a_launch_of_several_processes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="start it once, with --jobs"):
        run(TINY, tmp_path, Recorder())
