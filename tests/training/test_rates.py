"""Parameters that learn faster than others, as a model may ask for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from contentrope.training import Batch, Stepper, TrainConfig, train

CONFIG = TrainConfig(steps=6, batch_size=2, learning_rate=1e-3, warmup=2, weight_decay=0.0)


class Two(nn.Module):
    """The parameter that learns faster comes first, so that groups have another order than parameters."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fast, self.slow, self.factor = nn.Embedding(5, 4), nn.Linear(4, 5), factor
        self.last = nn.Linear(5, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.last(self.slow(self.fast(ids)).tanh())

    def rate_factor(self, name: str) -> float:
        return self.factor if name.startswith(("fast", "last")) else 1.0


class Same:
    def at(self, step: int, rows: int, seed: int) -> Batch:
        ids = torch.arange(rows * 3).view(rows, 3) % 5
        return Batch({"ids": ids}, (ids + step) % 5)


def moved(factor: float) -> dict[str, float]:
    """How far the first update takes each parameter: with Adam, as far as its rate."""
    model, before = Two(factor), Two(factor).state_dict()
    Stepper(model, CONFIG).update(Same().at(0, 2, 0), 0)
    return {name: float((value - before[name]).abs().max()) for name, value in model.state_dict().items()}


def test_a_parameter_moves_by_its_own_rate() -> None:
    rate = CONFIG.learning_rate_at(0)
    found = moved(factor=10.0)
    assert found["slow.weight"] == pytest.approx(rate, rel=1e-2)
    for name in ("fast.weight", "last.weight", "last.bias"):
        assert found[name] == pytest.approx(10 * rate, rel=1e-2)
    assert moved(factor=1.0)["fast.weight"] == pytest.approx(rate, rel=1e-2)


def test_a_run_that_is_resumed_ends_where_a_whole_one_does(tmp_path: Path) -> None:
    whole = Two(10.0)
    train(Stepper(whole, CONFIG), Same())

    def stop(report: object) -> None:
        raise KeyboardInterrupt

    first = Two(10.0)
    with pytest.raises(KeyboardInterrupt):
        train(Stepper(first, CONFIG), Same(), checkpoint=tmp_path, on_step=stop)
    resumed = Two(10.0)
    train(Stepper(resumed, CONFIG), Same(), checkpoint=tmp_path)
    for name, value in resumed.state_dict().items():
        assert torch.equal(value, whole.state_dict()[name]), name
