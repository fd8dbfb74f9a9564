"""Seeds trained in one update are, for an experiment, the models of those seeds."""

from pathlib import Path
from typing import Any

import pytest
import torch

from contentrope.config import ModelConfig
from contentrope.training import TrainConfig, Windows
from experiments.models import trained_models
from tests.support import random_ids

TRAINING = TrainConfig(steps=6, batch_size=2, learning_rate=1e-2)


def trained(out: Path, scheme: str, *, together: bool, seeds: int = 2, stop_at: int = 0) -> list[Any]:
    config = ModelConfig(vocab_size=9, dim=16, layers=1, heads=2, scheme=scheme, terminators=(0,))
    batches = Windows(random_ids(1, 200)[0] % 9, length=12)

    def tell(event: Any) -> None:
        if event.report.step == stop_at and event.seed == seeds - 1:
            raise KeyboardInterrupt

    settings: dict[str, Any] = {"settings": {}, "out": out, "device": "cpu", "tell": tell, "together": together}
    found = trained_models("v", list(range(seeds)), config, TRAINING, batches, **settings)
    return [(model.head.weight.detach().clone(), facts) for _, model, _, facts in found]


@pytest.mark.parametrize("scheme", ["content", "rope"])
def test_the_same_models_as_one_after_the_other(scheme: str, tmp_path: Path) -> None:
    apart = trained(tmp_path / "apart", scheme, together=False)
    beside = trained(tmp_path / "beside", scheme, together=True)
    for (theirs, alone), (ours, facts) in zip(apart, beside, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
        assert (alone["seeds_together"], facts["seeds_together"]) == (1, 2)
        assert facts["final_loss"] == pytest.approx(alone["final_loss"], abs=1e-4)


def test_a_scheme_with_weights_of_its_own_is_trained_one_after_the_other(tmp_path: Path) -> None:
    assert [facts["seeds_together"] for _, facts in trained(tmp_path, "cope", together=True)] == [1, 1]


def test_an_interrupted_run_goes_on_together(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "stopped", "content", together=True, stop_at=3)
    resumed, whole = (trained(tmp_path / name, "content", together=True) for name in ("stopped", "whole"))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(resumed, whole, strict=True))
    assert [facts["seeds_together"] for _, facts in resumed] == [2, 2]


def test_a_seed_that_began_alone_ends_alone(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, "content", together=False, seeds=1, stop_at=3)
    assert [facts["seeds_together"] for _, facts in trained(tmp_path, "content", together=True)] == [1, 1]
