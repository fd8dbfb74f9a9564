"""The memory checker under which the suite runs all kernels finds what it is there for."""

from __future__ import annotations

import re

import pytest
import torch

triton = pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("for Triton's interpreter, which the suite has off where there is a GPU", allow_module_level=True)

import triton.language as tl  # noqa: E402
from triton.runtime.errors import InterpreterError  # noqa: E402

from tests.support.watched_memory import watched_memory  # noqa: E402


@triton.jit
def shifted_kernel(source, target, shift, count, limit, SIZE: tl.constexpr):  # noqa: N803
    """Copies ``limit`` numbers, from ``shift`` further on, a program at a time."""
    column = tl.program_id(0) * count + tl.arange(0, SIZE)
    value = tl.load(source + column + shift, mask=column < limit, other=0.0)
    tl.store(target + column, value, mask=column < limit)


@triton.jit
def total_kernel(source, target):
    tl.atomic_add(target, tl.load(source + tl.program_id(0)))


def copied(target: torch.Tensor, *, shift: int = 0, count: int = 4, limit: int = 8, programs: int = 2) -> list[str]:
    with watched_memory() as started:
        shifted_kernel[(programs,)](torch.arange(8.0), target, shift, count, limit, SIZE=4)
    return started


def test_what_stays_inside_is_let_through() -> None:
    target = torch.empty(8)
    assert copied(target) == ["shifted_kernel"]
    assert target.tolist() == list(range(8))


def test_masks_are_heeded() -> None:
    copied(torch.empty(8), programs=3)


@pytest.mark.parametrize(("shift", "numbers"), [(1, 1), (-1, 1), (10**6, 4)])
def test_reading_outside_is_found(shift: int, numbers: int) -> None:
    with pytest.raises(InterpreterError, match=f"shifted_kernel reads {numbers} numbers that no tensor of its own has"):
        copied(torch.empty(8), shift=shift)


def test_writing_outside_is_found() -> None:
    with pytest.raises(InterpreterError, match="shifted_kernel writes 1 numbers that no tensor of its own has"):
        copied(torch.empty(8)[:7])


def test_two_programs_that_write_to_one_place_are_found() -> None:
    with pytest.raises(InterpreterError, match="two programs write to the same place"):
        copied(torch.empty(8), count=3)


@pytest.mark.parametrize(
    ("shift", "message"), [(8, "writes what another one has read"), (0, "reads what another one writes")]
)
def test_reading_what_another_program_writes_is_found_in_either_order(shift: int, message: str) -> None:
    memory = torch.zeros(16)
    with watched_memory(), pytest.raises(InterpreterError, match=message):
        shifted_kernel[(2,)](memory, memory[4:], shift, 4, 8, SIZE=4)


def test_whole_numbers_that_do_not_fit_are_found() -> None:
    with pytest.raises(InterpreterError, match="int32 overflow detected for operation mul"):
        copied(torch.empty(8), count=2**30, programs=3)


def test_sums_in_any_order_are_refused() -> None:
    with watched_memory(), pytest.raises(InterpreterError, match="total_kernel adds to what is there, in any order"):
        total_kernel[(2,)](torch.ones(2), torch.zeros(1))


def test_all_kernels_of_the_suite_are_watched() -> None:
    """By the fixture of the whole suite, without being asked."""
    with pytest.raises(InterpreterError, match=re.escape("no tensor of its own has")):
        shifted_kernel[(2,)](torch.arange(8.0), torch.empty(8), 1, 4, 8, SIZE=4)
