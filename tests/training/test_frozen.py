"""Checkpoints of a model whose weights are partly frozen: what they hold, how they go on, whose they are."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from contentrope.errors import CheckpointError
from contentrope.training import Stepper, TrainConfig, Windows, train

CONFIG = TrainConfig(steps=6, batch_size=3, learning_rate=1e-2)
DATA = Windows(torch.arange(400) * 7919 % 11, length=7)


class Adapted(nn.Module):
    """A frozen embedding, tied to a frozen head, with a trained change between them."""

    def __init__(self, base: int = 1, frozen: bool = True) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(base)
            self.embedding, self.head = nn.Embedding(11, 4), nn.Linear(4, 11, bias=False)
            torch.manual_seed(0)
            self.change = nn.Linear(4, 4)
        self.head.weight = self.embedding.weight
        self.embedding.weight.requires_grad = not frozen
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, ids: Tensor) -> Tensor:
        self.calls += 1
        return self.head(self.change(self.embedding(ids)))


def run(folder: Path, model: nn.Module, steps: int = 6) -> nn.Module:
    class StopError(Exception):
        pass

    def stop(report: object) -> None:
        if report.step == steps < CONFIG.steps:
            raise StopError

    with suppress(StopError):
        train(Stepper(model, CONFIG), DATA, checkpoint=folder, save_every=3, on_step=stop)
    return model


def test_only_what_is_trained_is_held(tmp_path: Path) -> None:
    run(tmp_path / "adapted", Adapted())
    run(tmp_path / "all", Adapted(frozen=False))
    held = {
        name: set(load_file(tmp_path / name / "step-00000006" / "tensors.safetensors")) for name in ("adapted", "all")
    }
    assert {name for name in held["adapted"] if name.startswith("model.")} == {
        "model.change.weight",
        "model.change.bias",
        "model.calls",
    }
    assert {"model.embedding.weight", "model.head.weight"} <= held["all"]


def test_a_run_that_was_stopped_has_the_bits_of_one_that_was_not(tmp_path: Path) -> None:
    whole, started = run(tmp_path / "whole", Adapted()), Adapted()
    run(tmp_path / "resumed", Adapted(), steps=3)
    resumed = run(tmp_path / "resumed", started)
    assert int(resumed.calls) == 6
    for (name, weight), other in zip(whole.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(weight, other), name
    assert not torch.equal(Adapted().change.weight, whole.change.weight)


def test_another_base_of_the_same_shape_is_refused(tmp_path: Path) -> None:
    run(tmp_path, Adapted(), steps=3)
    other = Adapted()
    with torch.no_grad():
        other.embedding.weight[3, 1] = torch.nextafter(other.embedding.weight[3, 1], torch.tensor(9.0))
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(CheckpointError, match="changes other weights"):
        run(tmp_path, other)
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())
    with pytest.raises(CheckpointError):
        run(tmp_path, Adapted(frozen=False))
    run(tmp_path, Adapted())


def test_a_model_without_frozen_weights_has_no_fingerprint() -> None:
    assert Stepper(Adapted(frozen=False), CONFIG).frozen() is None
    ours, other = (Stepper(Adapted(base), CONFIG).frozen() for base in (1, 2))
    assert ours == Stepper(Adapted(), replace(CONFIG, seed=3)).frozen() != other
