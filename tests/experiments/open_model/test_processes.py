"""Two processes share the training of a conversion with a near window, sharded; one measures what they left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from contentrope.results import read_json
from contentrope.training import checkpoint as checkpoints
from experiments import runner
from experiments.models import folder_of
from experiments.open_model import measuring, models
from experiments.open_model.run import OpenModel
from tests.experiments.growth.runs import Recorder
from tests.experiments.open_model import program_for_processes as program
from tests.experiments.open_model.tiny import FewBooks, tiny

pytest.importorskip("accelerate")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed"),
]
VARIANT = "content:window=16"
FSDP2 = [
    "accelerate.commands.launch", "--use_fsdp", "--fsdp_version", "2", "--num_processes", "2", "--num_machines", "1",
    "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0",
    "--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP", "--fsdp_transformer_layer_cls_to_wrap", "LlamaDecoderLayer",
]  # fmt: skip


def launched(folder: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-m", *FSDP2, program.__file__, str(folder), "--variants", VARIANT, "untouched"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def weights(out: Path) -> Any:
    found = checkpoints.latest(folder_of(out, VARIANT, 0) / "checkpoint")
    assert found is not None
    return found[0]


def test_two_processes_train_what_one_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "long_context", FewBooks)
    monkeypatch.setattr(measuring, "long_context", FewBooks)
    config = tiny(tmp_path / "model", variants=(VARIANT,), measures=("perplexity",))
    said = launched(tmp_path)
    out, alone = tmp_path / "out", tmp_path / "alone"
    assert "in one process, without accelerate launch, measures" in said
    assert said.count("step 4/4") == 1, "one process reports"
    assert not (out / "results.json").exists()

    experiment = OpenModel(config)
    experiment.train(VARIANT, [0], alone, "cpu", lambda event: None)
    shared, own = weights(out), weights(alone)
    assert shared.keys() == own.keys()
    changed = 0
    before = models.converted(config, VARIANT, experiment.tokenizer, experiment.books.training, "cpu").state_dict()
    for name, value in own.items():
        # float32, and AdamW divides by gradients that may be small.
        torch.testing.assert_close(shared[name], value, atol=2e-4, rtol=2e-3, msg=lambda t, name=name: f"{name}: {t}")
        start = before.get(name.removeprefix("model."))
        changed += start is not None and not torch.allclose(start, value, atol=1e-3)
    assert changed, "nothing was trained, so nothing was compared"

    recorder = Recorder()
    results = runner.run(OpenModel(config), out, recorder)
    assert recorder.of("trained") == [], "trained again"
    expected = runner.run(OpenModel(config), tmp_path / "at-once", Recorder())
    found, other = (r["variants"][VARIANT]["runs"]["0"]["perplexity"] for r in (results, expected))
    assert found == pytest.approx(other, rel=1e-3)
    assert read_json(out / "results.json")["variants"][VARIANT]["runs"]["0"]["trained_tokens"] == 4 * 2 * 32
