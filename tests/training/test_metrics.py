"""The metrics of a run: every step at most once and in order, whatever happened to the process that wrote them."""

from __future__ import annotations

import errno
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from contentrope.errors import BackendError, InputError
from contentrope.training import MetricsLog, Stepper, StepReport, TrainConfig, Windows, read_metrics, train

WINDOWS = Windows(torch.arange(400) * 7919 % 11, length=7)


def report_of(step: int, steps: int = 1000, **changes: float) -> StepReport:
    values: dict[str, Any] = {"loss": 3.0 - step / steps, "norm": 0.5, "learning_rate": 1e-3} | changes
    return StepReport(step=step, steps=steps, tokens_per_second=1e4, steps_per_second=20.0, seconds=step / 20, **values)


def steps_in(log: MetricsLog) -> list[int]:
    return [line["step"] for line in read_metrics(log.path)]


def record(log: MetricsLog, steps: range, total: int = 1000) -> None:
    for step in steps:
        log.record(report_of(step, total))


def test_a_line_holds_what_was_reported(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "new", every=1) as log:
        log.record(report_of(7))
    assert read_metrics(tmp_path / "new" / "metrics.jsonl") == [
        {"step": 7, "loss": 2.993, "norm": 0.5, "learning_rate": 1e-3, "tokens_per_second": 1e4, "seconds": 0.35}
    ]


def test_every_line_is_on_disk_at_once(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, every=1)
    for step in (1, 2, 3):
        log.record(report_of(step))
        assert steps_in(log)[-1] == step


@pytest.mark.parametrize("total", [5, 60, 1000, 4321, 100_000])
def test_the_number_of_lines_is_bounded_and_the_last_step_is_among_them(tmp_path: Path, total: int) -> None:
    log = MetricsLog(tmp_path)
    record(log, range(1, total + 1), total)
    steps = steps_in(log)
    assert steps[-1] == total
    assert len(steps) <= min(total // 10, 200) + 1
    assert steps == sorted(set(steps))


def test_looks_that_seldom_meet_the_spacing_are_recorded_all_the_same(tmp_path: Path) -> None:
    """A captured step is looked at every fifty updates; one line is due in every seventy."""
    log = MetricsLog(tmp_path, every=70)
    for step in range(50, 501, 50):
        log.record(report_of(step))
    assert steps_in(log) == [100, 150, 250, 300, 350, 450, 500]


def test_a_resumed_run_drops_the_lines_after_its_step(tmp_path: Path) -> None:
    record(MetricsLog(tmp_path, every=1), range(1, 10))
    log = MetricsLog(tmp_path, every=1)
    log.resume(4)
    assert steps_in(log) == [1, 2, 3, 4]
    record(log, range(5, 8))
    assert steps_in(log) == [1, 2, 3, 4, 5, 6, 7]


def test_without_a_resume_the_first_report_tells_where_the_run_is(tmp_path: Path) -> None:
    record(MetricsLog(tmp_path, every=1), range(1, 10))
    log = MetricsLog(tmp_path, every=1)
    record(log, range(6, 8))
    assert steps_in(log) == [1, 2, 3, 4, 5, 6, 7]


def test_the_spacing_goes_on_where_it_was(tmp_path: Path) -> None:
    record(MetricsLog(tmp_path, every=10), range(1, 26))
    log = MetricsLog(tmp_path, every=10)
    log.resume(23)
    record(log, range(24, 51))
    assert steps_in(log) == [10, 20, 30, 40, 50]


@pytest.mark.parametrize("torn", [b'{"step": 4, "lo', b'{"step": 4, "loss": 1.0}', b"\xff\xfe"])
def test_a_torn_last_line_is_left_out_and_dropped(tmp_path: Path, torn: bytes) -> None:
    log = MetricsLog(tmp_path, every=1)
    record(log, range(1, 4))
    with log.path.open("ab") as file:
        file.write(torn)
    assert steps_in(log) == [1, 2, 3]
    log = MetricsLog(tmp_path, every=1)
    log.resume(3)
    record(log, range(4, 6))
    assert steps_in(log) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("damage", [b"{", b"[]", b'{"loss": 1.0}', b"\xff"])
def test_damage_in_the_middle_is_named(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + damage + b'\n{"step": 3}\n')
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 2 is damaged.*delete that line"):
        read_metrics(path)


def test_the_rewrite_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(MetricsLog(tmp_path, every=1), range(1, 10))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    log = MetricsLog(tmp_path, every=1)
    with pytest.raises(OSError, match="No space left"):
        log.resume(4)
    assert steps_in(log) == list(range(1, 10))


def test_a_number_that_json_cannot_hold_becomes_null(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, every=1)
    log.record(report_of(1, norm=float("inf")))
    assert read_metrics(log.path)[0]["norm"] is None
    json.loads(log.path.read_text())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_reaches_the_caller_with_the_path(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, every=1)
    log.path = Path("/dev/full")
    log._last = 0
    with pytest.raises(OSError, match="/dev/full") as caught:
        log.record(report_of(1))
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == "/dev/full"


def test_a_line_that_could_not_be_written_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = MetricsLog(tmp_path, every=1)
    log.record(report_of(1))
    before = log.path.read_bytes()

    class HalfFull(io.FileIO):
        """Takes half of the first thing written, then is full."""

        def write(self, data: Any) -> int:
            if self.tell() > len(before):
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data[: len(data) // 2])

    monkeypatch.setattr(Path, "open", lambda path, mode, buffering: HalfFull(path, mode))
    with pytest.raises(OSError, match="No space left"):
        log.record(report_of(2))
    monkeypatch.undo()
    assert log.path.read_bytes() == before
    log.record(report_of(2))
    assert steps_in(log) == [1, 2]


@pytest.mark.parametrize("every", [0, -1, 1.5, True])
def test_a_senseless_spacing_is_refused(tmp_path: Path, every: Any) -> None:
    with pytest.raises(InputError, match="every must be an integer"):
        MetricsLog(tmp_path, every=every)


# --- TensorBoard -------------------------------------------------------------------------------------------------


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(f"train/{name}")]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_sees_every_step_once_after_a_resume(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with MetricsLog(tmp_path, tensorboard=True, every=1) as log:
        log.resume(0)
        record(log, range(1, 7))
    with MetricsLog(tmp_path, tensorboard=True, every=1) as log:
        log.resume(4)
        log.record(report_of(5, loss=1.25))
    assert [step for step, _ in scalars(tmp_path, "loss")] == [1, 2, 3, 4, 5]
    assert scalars(tmp_path, "loss")[-1] == (5, 1.25)
    assert scalars(tmp_path, "learning_rate")[0] == (1, pytest.approx(1e-3))


def test_a_missing_tensorboard_is_named_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(BackendError, match=r"pip install contentrope\[train\]"):
        MetricsLog(tmp_path, tensorboard=True)


# --- in a run ----------------------------------------------------------------------------------------------------


class Bigrams(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 11)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids)


def run(folder: Path, **options: Any) -> StepReport:
    config = TrainConfig(steps=12, batch_size=3, learning_rate=1e-2)
    with MetricsLog(folder, every=1) as metrics:
        return train(Stepper(Bigrams(), config), WINDOWS, metrics=metrics, **options)


def test_a_killed_run_has_every_step_once(tmp_path: Path) -> None:
    def kill(report: StepReport) -> None:
        if report.step == 8:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path, checkpoint=tmp_path, on_step=kill, save_every=5)
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")] == list(range(1, 9))
    last = run(tmp_path, checkpoint=tmp_path)
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert lines[-1]["loss"] == last.loss


def test_a_step_that_was_saved_has_been_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(*_: object) -> None:
        raise RuntimeError("power cut")

    monkeypatch.setattr("contentrope.training.loop.checkpoints.save", cut)
    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path, checkpoint=tmp_path)
    assert read_metrics(tmp_path / "metrics.jsonl")[-1]["step"] == 12


def test_a_run_that_starts_over_starts_its_metrics_over(tmp_path: Path) -> None:
    run(tmp_path)
    run(tmp_path)
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")] == list(range(1, 13))


def test_a_finished_run_keeps_its_metrics(tmp_path: Path) -> None:
    run(tmp_path, checkpoint=tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    run(tmp_path, checkpoint=tmp_path)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
