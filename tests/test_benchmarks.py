"""The benchmark commands run and write what they say."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import addresses, decode, timing, training
from contentrope.results import read_json
from experiments.timing.config import Row


def test_the_training_benchmark_prints_and_writes_steps_per_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "benchmark.json"
    sizes = ["--steps", "3", "--batch-size", "1", "--device", "cpu", "--precision", "float32"]
    monkeypatch.setattr(sys, "argv", ["training", "--variants", "rope", "content", *sizes, "--out", str(out)])
    training.main()
    stored, printed = read_json(out), capsys.readouterr().out
    assert stored["config"]["steps"] == 3
    assert stored["environment"]["torch"]
    assert stored["results"]["rope"]["ratio"] == 1.0
    for variant in ("rope", "content"):
        found = stored["results"][variant]
        assert found["milliseconds_per_step"] == pytest.approx(1e3 / found["steps_per_second"])
        assert f"{variant}: {found['steps_per_second']:.0f} steps/s" in printed


def test_a_benchmark_writes_over_its_like_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(training, "measure", lambda *_: pytest.fail("work was done first"))
    monkeypatch.setattr(sys, "argv", ["training", "--device", "cpu", "--out", str(tmp_path / "notes.json")])
    (tmp_path / "notes.json").write_text('{"mine": 1}')
    with pytest.raises(SystemExit) as stopped:
        training.main()
    assert stopped.value.code == 2
    assert str(tmp_path / "notes.json") in capsys.readouterr().err
    assert (tmp_path / "notes.json").read_text() == '{"mine": 1}'
    (tmp_path / "result.json").write_text('{"config": {}, "environment": {}, "results": {}}')
    assert timing.result_file(str(tmp_path / "result.json")) == tmp_path / "result.json"


def test_a_wrong_setting_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["training", "--steps", "0", "--device", "cpu"])
    with pytest.raises(SystemExit) as stopped:
        training.main()
    assert stopped.value.code == 2
    assert "steps must be an integer of at least 1" in capsys.readouterr().err


def test_the_decoding_benchmark_writes_ratios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "decode.json"
    sizes = ["--sizes", "0.8m", "--cached", "40", "--tokens", "3", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", ["decode", *sizes, "--out", str(out)])
    decode.main()
    stored = read_json(out)
    assert set(stored["results"]) == {f"{name}, 0.8m, 40" for name in decode.SCHEMES}
    for row in stored["results"].values():
        assert row["ratio"] > 0
        assert row["ours_tokens_per_second"] == pytest.approx(3 / row["ours_seconds"])


@pytest.mark.parametrize("unit", [1, 8])
def test_the_benchmark_of_addresses_times_the_same_work_on_both_sides(
    unit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    ran = []
    monkeypatch.setattr(addresses, "graphed", lambda run: run)
    monkeypatch.setattr(addresses, "milliseconds", lambda run, repeats: ran.append(run()) or float(len(ran)))
    found = addresses.measure(Row("0.8M", 64), unit, repeats=1, device="cuda" if torch.cuda.is_available() else "cpu")
    library, _, ours, _ = ran
    assert torch.allclose(library[:, : 64 // unit], ours[:, : 64 // unit], atol=1e-4)
    assert not ours[:, 64 // unit :].any()
    assert found["graph_both_ratio"] == 4 / 2
    assert max(found["ours_error"], found["baseline_error"]) < 1e-6


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_benchmark_of_addresses_needs_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["addresses"])
    with pytest.raises(SystemExit):
        addresses.main()
    assert "needs a CUDA device" in capsys.readouterr().err


def clocked(monkeypatch: pytest.MonkeyPatch, ours: list[float], plain: list[float], slowed: dict[int, float]) -> Any:
    """Both sides' steps as they would take on a clock that goes slower by a factor from some ticks on."""
    now, ticks = [0.0], [0]

    def step(seconds: float) -> None:
        factor = max((factor for tick, factor in slowed.items() if ticks[0] >= tick), default=1.0)
        now[0] += seconds * factor
        ticks[0] += 1

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    return (timing.Work([partial(step, seconds) for seconds in side]) for side in (ours, plain))


def test_a_step_that_has_more_to_do_keeps_its_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = clocked(monkeypatch, ours=[1.0, 1.0, 1.0, 3.0], plain=[1.0, 1.0, 1.0, 1.0], slowed={})
    found = timing.paired_seconds(*sides, repeats=3)
    assert found["ratio"] == pytest.approx(6 / 4)
    assert (found["ours_seconds"], found["baseline_seconds"]) == pytest.approx((6, 4))


def test_a_machine_that_becomes_slower_slows_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    # In the midst of the third of five rounds, between the two sides of a step.
    sides = clocked(monkeypatch, ours=[1.1] * 4, plain=[1.0] * 4, slowed={4 * 2 * 4 + 3: 2.0})
    found = timing.paired_seconds(*sides, repeats=5)
    assert found["ratio"] == pytest.approx(1.1)


def test_sides_of_unequal_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="longer"):
        timing.paired_seconds(timing.Work([int]), timing.Work([int, int]), repeats=1)
