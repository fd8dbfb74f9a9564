"""How many processes there are, as the launcher says."""

from __future__ import annotations

import pytest
from torch import nn

from contentrope.errors import InputError
from contentrope.training import Stepper, TrainConfig, stepper_for


@pytest.mark.parametrize("count", ["many", "0", "-1", "1.5"])
def test_a_senseless_number_of_processes_is_named(count: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", count)
    with pytest.raises(InputError, match=f"WORLD_SIZE is '{count}', not a number of processes"):
        stepper_for(nn.Linear(2, 2), TrainConfig())


def test_one_process_trains_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert type(stepper_for(nn.Linear(2, 2), TrainConfig())) is Stepper
