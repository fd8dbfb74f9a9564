"""How many processes there are, as the launcher says, and what one of them does."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from contentrope.errors import BackendError, InputError
from contentrope.training import Stepper, TrainConfig, local_device, stepper_for


@pytest.mark.parametrize("count", ["many", "0", "-1", "1.5"])
def test_a_senseless_number_of_processes_is_named(count: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", count)
    with pytest.raises(InputError, match=f"WORLD_SIZE is '{count}', not a number of processes"):
        stepper_for(nn.Linear(2, 2), TrainConfig())


@pytest.mark.parametrize("count", [None, "1"])
def test_one_process_trains_by_itself(count: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if count is not None:
        monkeypatch.setenv("WORLD_SIZE", count)
    assert type(stepper_for(nn.Linear(2, 2), TrainConfig())) is Stepper
    assert local_device("cuda") == torch.device("cuda")


def test_each_process_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert local_device("cuda") == torch.device("cuda:3")
    assert local_device("cuda:1") == torch.device("cuda:1")
    assert local_device("cpu") == torch.device("cpu")


def test_missing_accelerate_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(BackendError, match=r"pip install contentrope\[train\]"):
        stepper_for(nn.Linear(2, 2), TrainConfig())
