"""Kernels that are found again are those Triton would have started."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contentrope import launching
from contentrope.errors import BackendError
from contentrope.launching import power_of_two, programs, start

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_kernels_are_started_as_triton_itself_would_start_them() -> None:
    pytest.importorskip("triton")
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "0",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
    }
    command = [sys.executable, "-m", "tests.support.pretended_gpu"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    starts, kernels = (int(word) for word in done.stdout.split() if word.isdigit())
    assert starts >= 6 * 72
    assert kernels >= 20


@given(length=st.integers(1, 10**6), tile=st.integers(1, 1024))
def test_tiles_cover_a_length_and_no_fewer_would(length: int, tile: int) -> None:
    assert (programs(length, tile) - 1) * tile < length <= programs(length, tile) * tile


@given(st.integers(1, 10**6))
def test_the_first_power_of_two(least: int) -> None:
    power = power_of_two(least)
    assert power.bit_count() == 1
    assert power // 2 < least <= power


@pytest.mark.parametrize("grid", [(1, 65536), (1, 1, 65536)])
def test_more_rows_than_a_gpu_takes_are_refused_before_anything_is_started(grid: tuple[int, ...]) -> None:
    with pytest.raises(BackendError, match=r"65536 rows: the GPU .* at most 65535 .*; give fewer at a time, or use"):
        start(None, grid, (), ())


class OnAnotherGpu(Tensor):
    """Has no numbers; says that it is where it is not."""

    is_cuda = True  # type: ignore[assignment]

    def get_device(self) -> int:
        return 1


class NotedKernel:
    """Notes which GPU is the current one when it is started, before and after it is compiled."""

    arg_names = ("tensor",)

    def __init__(self) -> None:
        self.started_on: list[int] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., "NotedKernel"]:
        def run(*given: Any) -> NotedKernel:
            self.started_on.append(torch.cuda.current_device())
            return self

        return run


def test_kernels_are_started_on_the_gpu_of_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    current = [0]

    @contextmanager
    def entered(device: int) -> Iterator[None]:
        before, current[0] = current[0], device
        yield
        current[0] = before

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "device", entered)
    monkeypatch.setattr(launching, "_found", {})
    kernel = NotedKernel()
    elsewhere, here = torch.zeros(4).as_subclass(OnAnotherGpu), torch.zeros(4)
    for tensor in (elsewhere, elsewhere, here, elsewhere):
        start(kernel, (1,), (tensor,), ())
    assert kernel.started_on == [1, 1, 0, 1]
    assert current == [0]


class TakingKernel:
    """Notes what it is given."""

    arg_names = ("tensor",)

    def __init__(self) -> None:
        self.taken: list[Any] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., "TakingKernel"]:
        def run(*given: Any) -> TakingKernel:
            self.taken += given
            return self

        return run


class OnThisGpu(Tensor):
    is_cuda = True  # type: ignore[assignment]

    def get_device(self) -> int:
        return 0


def test_a_kernel_that_was_found_is_told_where_tensors_are_unless_they_are_on_no_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Triton refuses those in words; it does not look at mere places."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(launching, "_found", {})
    kernel, here, astray = TakingKernel(), torch.zeros(4).as_subclass(OnThisGpu), torch.zeros(4)
    for tensor in (here, here, astray):
        start(kernel, (1,), (tensor,), ())
    first, second, third = kernel.taken
    assert first is here
    assert second == here.data_ptr()
    assert third is astray
