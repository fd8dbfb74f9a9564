"""Batches depend on the seed and the step alone, and can be shared out."""

import pytest
import torch

from contentrope.errors import InputError
from contentrope.training import Batch, Windows

TEXT = torch.arange(400) * 7919 % 11
WINDOWS = Windows(TEXT, length=7)


def test_batches_depend_on_seed_and_step_alone() -> None:
    batch = WINDOWS.at(3, rows=3, seed=5)
    torch.rand(5)
    assert torch.equal(WINDOWS.at(3, rows=3, seed=5).targets, batch.targets)
    assert not torch.equal(WINDOWS.at(4, rows=3, seed=5).targets, batch.targets)
    assert not torch.equal(WINDOWS.at(3, rows=3, seed=6).targets, batch.targets)


def test_windows_come_from_the_text_and_targets_follow_inputs() -> None:
    batch = WINDOWS.at(0, rows=5, seed=0)
    whole = torch.cat((batch.inputs["ids"], batch.targets[:, -1:]), dim=1)
    assert torch.equal(whole[:, 1:], batch.targets)
    assert all((TEXT.unfold(0, 8, 1) == row).all(-1).any() for row in whole)


def test_every_window_can_be_drawn_the_last_one_too() -> None:
    batch = Windows(torch.arange(6), length=3).at(0, rows=200, seed=0)
    assert set(batch.inputs["ids"][:, 0].tolist()) == {0, 1, 2}
    assert batch.targets.max() == 5


def test_parts_are_the_rows_in_order() -> None:
    batch = WINDOWS.at(0, rows=6, seed=0)
    parts = list(batch.parts(3))
    assert [len(part.targets) for part in parts] == [2, 2, 2]
    assert torch.equal(torch.cat([part.targets for part in parts]), batch.targets)
    assert torch.equal(torch.cat([part.inputs["ids"] for part in parts]), batch.inputs["ids"])


def test_a_batch_is_overwritten_in_place() -> None:
    first, second = WINDOWS.at(0, rows=2, seed=0), WINDOWS.at(1, rows=2, seed=0)
    static = Batch({"ids": first.inputs["ids"].clone()}, first.targets.clone())
    addresses = static.inputs["ids"].data_ptr(), static.targets.data_ptr()
    static.copy_from(second)
    assert torch.equal(static.inputs["ids"], second.inputs["ids"])
    assert torch.equal(static.targets, second.targets)
    assert addresses == (static.inputs["ids"].data_ptr(), static.targets.data_ptr())


def test_data_shorter_than_a_window_is_refused() -> None:
    with pytest.raises(InputError, match="7 tokens; length 7 needs 8"):
        Windows(TEXT[:7], length=7)


@pytest.mark.parametrize("length", [0, 1.5, True])
def test_a_senseless_length_is_refused(length: int) -> None:
    with pytest.raises(InputError, match="length must be an integer"):
        Windows(TEXT, length=length)
