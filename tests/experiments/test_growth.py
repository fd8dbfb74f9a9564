"""The context-growth experiment: complete results, and no work done twice."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from contentrope.errors import InputError
from contentrope.experiments.growth import GrowthConfig, run
from contentrope.experiments.training import StepReport
from contentrope.experiments.variants import parse_variant
from contentrope.results import read_json, write_json

TINY = GrowthConfig(
    schemes=("content", "rope"),
    dim=8,
    layers=1,
    heads=2,
    length=16,
    multiples=(1, 2),
    steps=4,
    batch_size=2,
    characters=4_000,
    evaluation_tokens=96,
)


@dataclass
class Recorder:
    interrupt: tuple[str, int] | None = None
    events: list[tuple] = field(default_factory=list)

    def kept(self, scheme: str) -> None:
        self.events.append(("kept", scheme))

    def trained(self, scheme: str, report: StepReport) -> None:
        self.events.append(("trained", scheme, report.step))
        if self.interrupt == (scheme, report.step):
            raise KeyboardInterrupt

    def evaluated(self, scheme: str, length: int, value: float) -> None:
        self.events.append(("evaluated", scheme, length))


def perplexities(results: dict) -> dict:
    return {name: scheme["perplexity"] for name, scheme in results["schemes"].items()}


def test_results_hold_everything_that_decided_them(tmp_path: Path) -> None:
    results = run(TINY, tmp_path, Recorder())
    assert read_json(tmp_path / "results.json") == read_json_of(results, tmp_path)
    assert results["config"]["steps"] == 4
    assert results["config"]["seed"] == 0
    assert len(results["corpus"]["sha256"]) == 64
    assert results["environment"]["torch"]
    for name in TINY.schemes:
        scheme = results["schemes"][name]
        assert set(scheme["perplexity"]) == {"16", "32"}
        assert scheme["final_loss"] > 0
        assert scheme["training_seconds"] > 0
        assert scheme["model"]["scheme"] == name
        assert len(scheme["model"]["terminators"]) == 1


def read_json_of(results: dict, folder: Path) -> dict:
    """``results`` as JSON sees them: tuples become lists."""
    write_json(folder / "copy.json", results)
    return read_json(folder / "copy.json")


def test_the_same_seed_gives_the_same_numbers_and_another_one_others(tmp_path: Path) -> None:
    first = perplexities(run(TINY, tmp_path / "a", Recorder()))
    assert perplexities(run(TINY, tmp_path / "b", Recorder())) == first
    assert perplexities(run(replace(TINY, seed=1), tmp_path / "c", Recorder())) != first


def test_an_interrupted_run_continues_where_it_was(tmp_path: Path) -> None:
    expected = run(TINY, tmp_path / "whole", Recorder())
    with pytest.raises(KeyboardInterrupt):
        run(TINY, tmp_path / "parts", Recorder(interrupt=("rope", 3)))
    assert set(read_json(tmp_path / "parts" / "results.json")["schemes"]) == {"content"}
    rest = Recorder()
    results = run(TINY, tmp_path / "parts", rest)
    assert rest.events[:2] == [("kept", "content"), ("trained", "rope", 4)]
    assert perplexities(results) == perplexities(expected)


def test_a_finished_run_trains_nothing(tmp_path: Path) -> None:
    first = run(TINY, tmp_path, Recorder())
    again = Recorder()
    assert perplexities(run(TINY, tmp_path, again)) == perplexities(first)
    assert again.events == [("kept", "content"), ("kept", "rope")]


def test_a_scheme_can_be_added_later(tmp_path: Path) -> None:
    run(replace(TINY, schemes=("rope",)), tmp_path, Recorder())
    added = Recorder()
    run(replace(TINY, schemes=("content:competition=1",)), tmp_path, added)
    stored = read_json(tmp_path / "results.json")
    assert set(stored["schemes"]) == {"rope", "content:competition=1"}
    assert stored["config"]["schemes"] == ["rope", "content:competition=1"]
    assert stored["schemes"]["content:competition=1"]["model"]["options"] == {"competition": 1}
    assert added.events[0] == ("trained", "content:competition=1", 1)


def test_results_of_another_run_are_not_overwritten(tmp_path: Path) -> None:
    run(TINY, tmp_path, Recorder())
    before = (tmp_path / "results.json").read_bytes()
    with pytest.raises(InputError, match=r"config\.seed: 3 here, 0 in the file.*another folder"):
        run(replace(TINY, seed=3), tmp_path, Recorder())
    assert (tmp_path / "results.json").read_bytes() == before


def test_another_corpus_is_noticed(tmp_path: Path) -> None:
    run(TINY, tmp_path, Recorder())
    stored = read_json(tmp_path / "results.json")
    stored["corpus"]["sha256"] = "0" * 64
    write_json(tmp_path / "results.json", stored)
    with pytest.raises(InputError, match=r"corpus\.sha256"):
        run(TINY, tmp_path, Recorder())


def test_a_misspelt_option_stops_the_run_before_it_trains(tmp_path: Path) -> None:
    recorder = Recorder()
    with pytest.raises(InputError, match="kompetition"):
        run(replace(TINY, schemes=("rope", "content:kompetition=1")), tmp_path, recorder)
    assert recorder.events == []


def test_every_length_scores_the_same_characters() -> None:
    config = replace(TINY, multiples=(3, 1), evaluation_tokens=200)
    assert config.lengths == (16, 48)
    assert config.scored_tokens == 192


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schemes": ()}, "schemes"),
        ({"schemes": ("rope", "rope")}, "schemes"),
        ({"schemes": ("telepathy",)}, "unknown scheme 'telepathy'.*rope"),
        ({"schemes": ("content:competition",)}, "option=value"),
        ({"multiples": (0, 1)}, "multiples"),
        ({"steps": 0}, "steps"),
        ({"multiples": (1, 64)}, "1024 characters do not fit"),
    ],
)
def test_senseless_settings_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(TINY, **settings)


def test_option_values_keep_their_type() -> None:
    assert parse_variant("content:a=1,b=0.5,c=true,d=word") == (
        "content",
        {"a": 1, "b": 0.5, "c": True, "d": "word"},
    )
