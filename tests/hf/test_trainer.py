"""Trainer and Accelerate train an attached model as any other; so do two processes that share it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Trainer, TrainingArguments

import contentrope.hf as chf
from tests.hf import program_for_processes as program
from tests.hf.models import attached, logits, random_ids

pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*pin_memory.*")

ROWS = [{"input_ids": row, "labels": row} for row in random_ids(24, 17)]


def trainer(folder: Path, **settings: Any) -> Trainer:
    model = attached("llama", lively=False, positions="global", dtype=torch.float32)
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=6,
        save_steps=3,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=1,
        **settings,
    )
    return Trainer(model=model, args=arguments, train_dataset=ROWS)


def weights(model: Any) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
def test_a_run_that_is_resumed_ends_where_a_whole_one_does(checkpointing: bool, tmp_path: Path) -> None:
    whole = trainer(tmp_path, gradient_checkpointing=checkpointing)
    whole.train()
    expected = weights(whole.model)
    assert bool(expected["contentrope.by_turning.0.project.weight"].any())
    resumed = trainer(tmp_path, gradient_checkpointing=checkpointing)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    found = weights(resumed.model)
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-6, msg=name)
    fresh, ids = attached("llama", lively=False, dtype=torch.float32), random_ids(2, 17)
    chf.load(fresh, tmp_path / "checkpoint-6")
    assert torch.equal(fresh.contentrope.state_dict()["by_turning.0.project.weight"],
                       expected["contentrope.by_turning.0.project.weight"])  # fmt: skip
    assert chf.adapter_of(fresh).gate == 1.0
    assert torch.isfinite(logits(fresh, ids)).all()


def test_accelerate_trains_what_a_plain_loop_trains() -> None:
    from accelerate import Accelerator

    def run(prepare: Any, backward: Any) -> list[float]:
        model = attached("llama", lively=False).train()
        model, optimizer = prepare(model, torch.optim.SGD(model.parameters(), lr=0.05))
        losses = []
        for step in range(3):
            ids = random_ids(2, 15, seed=step)
            optimizer.zero_grad()
            loss = model(input_ids=ids, labels=ids).loss
            backward(loss)
            optimizer.step()
            losses.append(float(loss.detach()))
        return losses

    accelerator = Accelerator(cpu=True)
    found = run(accelerator.prepare, accelerator.backward)
    assert found == run(lambda *parts: parts, lambda loss: loss.backward())
    assert len(set(found)) == 3


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed")
def test_two_processes_that_share_a_model_train_what_one_trains(tmp_path: Path) -> None:
    model = program.new_model()
    expected = program.losses_of(model, slice(None))
    weight = model.contentrope.by_turning[0].project.weight.detach()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    finished = subprocess.run(
        [*command, "-m", "tests.hf.program_for_processes", str(tmp_path)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    for rank in (0, 1):
        found = json.loads((tmp_path / f"results-{rank}.json").read_text())
        assert found["loaded"]
        torch.testing.assert_close(torch.tensor(found["losses"]), torch.tensor(expected), rtol=0, atol=1e-6)
        torch.testing.assert_close(torch.tensor(found["weight"], dtype=torch.float64), weight, rtol=0, atol=1e-8)
