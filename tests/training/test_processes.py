"""Two processes train what one would: the same losses, weights and checkpoints; and they end together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contentrope.training import Stepper, StepReport, read_metrics, train
from contentrope.training import checkpoint as checkpoints
from tests.support.once import made_once
from tests.training import program_for_processes as program
from tests.training.program_for_processes import CONFIG, UnevenBatches, small_model

pytest.importorskip("accelerate")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed"),
]

# float64 rounds at 1e-16; losses and gradients are sums of some hundred terms near 1, in another order, and six
# updates of AdamW divide by gradients of 1e-3 and above.
NEAR = {"atol": 1e-10, "rtol": 1e-10}
DDP = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
FSDP2 = [
    "accelerate.commands.launch", "--use_fsdp", "--fsdp_version", "2", "--num_processes", "2", "--num_machines", "1",
    "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0",
    "--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP", "--fsdp_transformer_layer_cls_to_wrap", "Block",
]  # fmt: skip


@dataclass
class Alone:
    """The same run in one process."""

    reports: list[StepReport] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class Launch:
    folder: Path
    returncode: int
    output: str

    def of(self, scenario: str) -> list[dict[str, Any]]:
        """The scenario's outcome in both processes."""
        return [json.loads((self.folder / f"results-{rank}.json").read_text())[scenario] for rank in (0, 1)]


def one_process(checkpoint: Path, stop: int | None = None) -> Alone:
    def interrupt(report: StepReport) -> None:
        alone.reports.append(report)
        if report.step == stop:
            raise KeyboardInterrupt

    alone = Alone()
    try:
        train(Stepper(small_model(), CONFIG), UnevenBatches(), checkpoint=checkpoint, on_step=interrupt)
    except KeyboardInterrupt:
        assert stop is not None
    alone.tensors = saved_in(checkpoint)
    return alone


def saved_in(folder: Path) -> dict[str, Tensor]:
    found = checkpoints.latest(folder)
    assert found is not None
    return found[0]


def launched(command: list[str], folder: Path, ending: str) -> tuple[int, str]:
    """The exit status and the output."""
    one_process(folder / "from_one", stop=3)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, "-m", *command, program.__file__, str(folder), ending]
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(arguments, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            if ending == "ctrl_c":
                press_ctrl_c_when_ready(process, folder)
            process.wait(timeout=120)
        finally:
            if process.poll() is None:
                process.terminate()  # the launcher takes its processes along
                process.wait(timeout=60)
    return process.returncode, (folder / "output").read_text()


def press_ctrl_c_when_ready(process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + 120
    while not all((folder / f"waiting-{rank}").exists() for rank in (0, 1)):
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.fail((folder / "output").read_text())
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    return one_process(tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    folder, found = made_once(tmp_path_factory, "ddp", lambda place: launched(DDP, place, ending="poison"))
    return Launch(folder, *found)


@pytest.fixture(scope="module")
def fsdp2(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    folder, found = made_once(tmp_path_factory, "fsdp2", lambda place: launched(FSDP2, place, ending="ctrl_c"))
    return Launch(folder, *found)


@pytest.fixture(params=["ddp", "fsdp2"])
def launch(request: pytest.FixtureRequest) -> Iterator[Launch]:
    found = request.getfixturevalue(request.param)
    if not (found.folder / "results-1.json").exists():
        pytest.fail(found.output)
    return found


def assert_near(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, **NEAR, msg=lambda text, name=name: f"{name}: {text}")


def test_losses_norms_and_weights_are_those_of_one_process(launch: Launch, alone: Alone) -> None:
    """In two parts, with targets ignored unevenly, from other initial weights in the second process."""
    first, second = launch.of("whole_run")
    expected = [[report.loss, report.norm] for report in alone.reports]
    torch.testing.assert_close(torch.tensor(first["reports"]).double(), torch.tensor(expected).double(), **NEAR)
    assert len(expected) == CONFIG.steps
    assert second["reports"] == []  # the first process reports
    assert_near(saved_in(launch.folder / "whole"), alone.tensors)


def test_the_first_process_writes_the_metrics(launch: Launch) -> None:
    lines = read_metrics(launch.folder / "whole" / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]


def test_two_processes_go_on_from_a_checkpoint_of_one(launch: Launch, alone: Alone) -> None:
    kinds = {outcome["kind"] for outcome in launch.of("resumed_run")}
    assert kinds == {"DistributedDataParallel"} or kinds == {"FSDPTransformer"}
    for outcome in launch.of("resumed_run"):
        assert outcome["step"] == CONFIG.steps
        assert outcome["loss"] == pytest.approx(alone.reports[-1].loss, abs=1e-10)
    assert_near(saved_in(launch.folder / "from_one"), alone.tensors)


def test_a_ctrl_c_in_one_process_stops_both_at_the_same_step_and_one_goes_on(launch: Launch, alone: Alone) -> None:
    assert [outcome["error"] for outcome in launch.of("interrupted_run")] == ["HeldInterrupt"] * 2
    folder = launch.folder / "interrupted"
    assert [path.name for path in folder.iterdir()] == ["step-00000003"]
    train(Stepper(small_model(seed=9), CONFIG), UnevenBatches(), checkpoint=folder)
    assert_near(saved_in(folder), alone.tensors)


def test_a_restart_begins_again(launch: Launch, alone: Alone) -> None:
    for outcome in launch.of("restarted_run"):
        assert outcome["loss"] == pytest.approx(alone.reports[-1].loss, abs=1e-10)


def test_a_nan_in_one_process_is_an_error_in_both(launch: Launch) -> None:
    for outcome in launch.of("poisoned_run"):
        assert outcome["error"] == "DivergedError"
        assert "step 3: loss nan" in outcome["message"]
    assert checkpoints.latest(launch.folder / "poisoned")[1]["step"] == 2


@pytest.mark.parametrize(
    ("scenario", "own", "heard"),
    [
        ("full_disk_run", ("OSError", "disk full"), "process 0 failed: OSError: disk full"),
        ("failing_display_run", ("ValueError", "no display"), "process 0 failed: ValueError: no display"),
    ],
)
def test_what_fails_in_the_first_process_is_an_error_in_both(
    launch: Launch, scenario: str, own: tuple[str, str], heard: str
) -> None:
    first, second = launch.of(scenario)
    assert (first["error"], first["message"]) == own
    assert (second["error"], second["message"]) == ("ProcessError", heard)


def test_a_checkpoint_that_only_one_process_finds_is_refused(launch: Launch) -> None:
    for outcome in launch.of("one_without_the_checkpoint"):
        assert outcome["error"] == "CheckpointError"
        assert "different steps [3, 0]" in outcome["message"]


def test_every_process_has_its_own_random_numbers(launch: Launch) -> None:
    first, second = (set(outcome["seeds"]) for outcome in launch.of("dropout_run"))
    assert len(first) == len(second) == 2  # one a step
    assert not first & second


def test_gradients_are_exchanged_once_an_update(ddp: Launch) -> None:
    for outcome in ddp.of("exchanging_run"):
        assert outcome["exchanged"] == [False, True]


def test_settings_that_cannot_be_shared_are_refused(launch: Launch) -> None:
    for outcome in launch.of("refused_settings"):
        assert "batch_size 6 does not divide into 2 processes x accumulate 2" in outcome["rows"]
        assert "'graphs' is for one process, these are 2" in outcome["graphs"]
        assert outcome["auto"] == "none"


def test_an_error_that_nobody_catches_ends_the_launch(ddp: Launch) -> None:
    assert ddp.returncode != 0
    assert "DivergedError: step 3: loss nan" in ddp.output


def test_ctrl_c_for_the_launcher_saves_and_ends_both(fsdp2: Launch) -> None:
    outcomes = [json.loads((fsdp2.folder / f"ctrl-c-{rank}.json").read_text()) for rank in (0, 1)]
    assert [outcome["error"] for outcome in outcomes] == ["HeldInterrupt"] * 2
    assert len(list((fsdp2.folder / "ctrl_c").glob("step-*"))) == 1
