"""The timing experiment from end to end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contentrope.errors import BackendError, InputError
from contentrope.results import read_json
from contentrope.training import Batch, Stepper
from experiments.timing import race
from experiments.timing.config import parse_row
from experiments.timing.run import CompiledRotary, Timing, in_short, percent_above, with_overheads
from tests.experiments.growth.runs import Recorder
from tests.experiments.timing.tiny import TINY, Clock, run

UPDATE = Stepper.update


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("timing")
    return out, run(TINY, out, Recorder(), preset="tiny")


def test_the_result_file_holds_every_row_scheme_and_setting(finished: tuple[Path, dict[str, Any]]) -> None:
    stored = read_json(finished[0] / "results.json")
    assert stored["experiment"] == "timing"
    assert stored["config"]["timed_steps"] == 3
    assert list(stored["variants"]) == list(TINY.variants)
    found = stored["variants"]["0.8M at 16"]["runs"]["0"]
    assert (found["batch"], found["length"]) == (8, 16)
    assert found["size"] == {"dim": 128, "layers": 4, "heads": 4}
    assert found["environment"]["device"] == "cpu"
    timings = found["timings"]["none"]
    assert list(timings) == ["rope", "content", "content:competition=1"]
    for timing in timings.values():
        assert len(timing["steps_ms"]) == 3
        assert min(timing["steps_ms"]) <= timing["median_ms"] <= max(timing["steps_ms"])
        assert timing["peak_bytes"] is None
    assert timings["rope"]["parameters"] == 810_049
    assert timings["content"]["parameters"] == 818_561
    assert "overhead_percent" not in timings["rope"]


def test_overheads_are_those_of_the_medians_and_of_the_means(finished: tuple[Path, dict[str, Any]]) -> None:
    timings = finished[1]["variants"]["0.8M at 8"]["runs"]["0"]["timings"]["none"]
    rope = timings["rope"]
    for scheme in TINY.schemes:
        timing = timings[scheme]
        assert timing["overhead_percent"] == pytest.approx(100 * (timing["median_ms"] / rope["median_ms"] - 1))
        assert timing["overhead_of_means_percent"] == pytest.approx(100 * (timing["mean_ms"] / rope["mean_ms"] - 1))


def test_the_same_command_times_nothing_again_and_rows_can_be_added(finished: tuple[Path, dict[str, Any]]) -> None:
    out, results = finished
    again = Recorder()
    assert run(TINY, out, again)["variants"] == results["variants"]
    assert again.of("evaluated") == []
    more = run(replace(TINY, variants=("0.8M at 4",)), out, Recorder())
    assert set(more["variants"]) == {*TINY.variants, "0.8M at 4"}
    assert more["variants"]["0.8M at 8"] == results["variants"]["0.8M at 8"]
    with pytest.raises(InputError, match="timed_steps: 4 here, 3 in the file"):
        run(replace(TINY, timed_steps=4), out, Recorder())


def test_a_row_that_was_stopped_is_timed_from_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def stop_in_the_second_row(stepper: Stepper, batch: Batch, step: int) -> None:
        made.append(step)
        if len(made) == 20:
            raise KeyboardInterrupt
        UPDATE(stepper, batch, step)

    monkeypatch.setattr(Stepper, "update", stop_in_the_second_row)
    with pytest.raises(KeyboardInterrupt):
        run(TINY, tmp_path, Recorder())
    assert list(read_json(tmp_path / "results.json")["variants"]) == ["0.8M at 16"]
    recorder = Recorder()
    run(TINY, tmp_path, recorder)
    assert recorder.of("kept") == [("0.8M at 16",)]
    assert recorder.of("finished") == [("0.8M at 8",)]
    assert len(made) == 20 + 15


def test_several_jobs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="would disturb each other, got 2 jobs; leave out --jobs"):
        run(TINY, tmp_path, Recorder(), jobs=2)
    assert not list(tmp_path.iterdir())


# --- what is timed -------------------------------------------------------------------------------------------------


def measured(config: Any, row: str = "0.8M at 8", device: str = "cpu") -> dict[str, Any]:
    told: list[Any] = []
    Timing(config).measure(row, [0], Path("unused"), device, told.append)
    return told[-1].run["timings"]


def test_whole_updates_are_timed_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that only an update moves, every time is that of the update and of nothing else."""
    clock, log = Clock(), list[tuple[str, int]]()
    monkeypatch.setattr(race, "time", clock)
    takes = {"rope": 40.0, "content": 42.0}

    def update(stepper: Stepper, batch: Batch, step: int) -> None:
        scheme = stepper.model.config.scheme
        log.append((scheme, step))
        before = stepper.model.head.weight.clone()
        UPDATE(stepper, batch, step)
        assert not torch.equal(before, stepper.model.head.weight)
        clock.move(takes[scheme] * (10 if step < TINY.warmup_steps else 1))

    monkeypatch.setattr(Stepper, "update", update)
    timings = measured(replace(TINY, schemes=("content",)))["none"]
    assert log == [(scheme, step) for step in range(5) for scheme in ("rope", "content")]
    assert timings["rope"]["steps_ms"] == pytest.approx([40] * 3)
    assert timings["content"]["overhead_percent"] == pytest.approx(5)
    assert timings["content"]["overhead_of_means_percent"] == pytest.approx(5)


def test_random_numbers_outside_are_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    measured(TINY)
    assert torch.equal(torch.rand(1), expected)


def test_out_of_memory_is_written_down_and_the_rest_is_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def update(stepper: Stepper, batch: Batch, step: int) -> None:
        if stepper.model.config.options and batch.targets.shape[1] == 16:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB. GPU 0 has less.")
        UPDATE(stepper, batch, step)

    monkeypatch.setattr(Stepper, "update", update)
    results = run(TINY, tmp_path, Recorder())
    long, short = (results["variants"][row]["runs"]["0"]["timings"]["none"] for row in TINY.variants)
    assert long["content:competition=1"]["failed"] == "CUDA out of memory. Tried to allocate 9.00 GiB."
    assert long["content:competition=1"]["median_ms"] is None
    assert long["content:competition=1"]["overhead_percent"] is None
    assert long["content"]["median_ms"] > 0
    assert "failed" not in short["content:competition=1"]


def test_graphs_on_a_cpu_are_a_gap_in_the_table() -> None:
    config = replace(TINY, accelerations=("graphs", "none"), warmup_steps=4)
    timings = measured(config)
    for timing in timings["graphs"].values():
        assert "acceleration 'graphs' needs a CUDA device" in timing["failed"]
    assert timings["none"]["rope"]["median_ms"] > 0


def test_a_backend_that_cannot_run_here_is_a_gap_for_its_schemes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def update(stepper: Stepper, batch: Batch, step: int) -> None:
        if stepper.model.backend != "auto":
            raise BackendError(f"backend {stepper.model.backend!r} needs CUDA tensors, got cpu")
        UPDATE(stepper, batch, step)

    monkeypatch.setattr(Stepper, "update", update)
    timings = measured(replace(TINY, backend="fused", schemes=("content", "alibi")))["none"]
    assert timings["content"]["failed"] == "backend 'fused' needs CUDA tensors, got cpu"
    assert min(timings[scheme]["median_ms"] for scheme in ("rope", "alibi")) > 0


def test_only_the_eager_baseline_has_its_rotation_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    row, experiment = parse_row("0.8M at 8"), Timing(replace(TINY, rotary="compiled"))
    for scheme, acceleration, expected in (
        ("rope", "none", True),
        ("rope", "compile", False),
        ("content", "none", False),
    ):
        stepper = experiment._stepper(scheme, row, acceleration, 0, "cpu")
        assert isinstance(stepper.model.scheme, CompiledRotary) == expected
    plain = Timing(TINY)._stepper("rope", row, "none", 0, "cpu")
    assert not isinstance(plain.model.scheme, CompiledRotary)


# --- arithmetic ----------------------------------------------------------------------------------------------------


def timing(median: float | None, mean: float | None = None) -> dict[str, Any]:
    return {"median_ms": median, "mean_ms": median if mean is None else mean}


def test_overheads_are_percent_of_the_baseline() -> None:
    found = with_overheads({"rope": timing(40, 50), "content": timing(42, 49)})
    assert found["content"]["overhead_percent"] == pytest.approx(5)
    assert found["content"]["overhead_of_means_percent"] == pytest.approx(-2)
    assert found["rope"] == timing(40, 50)


def test_without_a_baseline_there_is_no_overhead() -> None:
    found = with_overheads({"rope": timing(None) | {"failed": "out of memory"}, "content": timing(42)})
    assert found["content"]["overhead_percent"] is None
    assert percent_above(42, None) is percent_above(None, 42) is None
    assert in_short("graphs", found) == "as one graph: rope failed (out of memory), content 42.0 ms"
