"""Operators give the same numbers and gradients to the compiler and to autograd; kernels that are found again are those
Triton would have started."""

from __future__ import annotations

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
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from contentrope.errors import BackendError
from contentrope.kernels import ops
from contentrope.kernels.ops import Differentiable, Operator, broadcast_strides, power_of_two, programs, start

ROOT = Path(__file__).resolve().parents[2]

ran: list[str] = []


def _same_shape(given: Any) -> Tensor:
    return torch.empty_like(given[0])


def _scale(out: Tensor, given: Any) -> None:
    ran.append("forward")
    out.copy_(given.x * given.factor)


def _scale_backward(x_grad: Tensor, given: Any) -> None:
    ran.append("backward")
    x_grad.copy_(given.out_grad * given.factor)


scaled = Differentiable(
    Operator("test_scaled(Tensor x, float factor) -> Tensor out", _same_shape, _scale),
    Operator("test_scaled_backward(Tensor out_grad, float factor) -> Tensor x_grad", _same_shape, _scale_backward),
)


def twice(x: Tensor) -> Tensor:
    return scaled(x, 3.0) + scaled(x, 4.0)


def test_both_ways_are_the_same() -> None:
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    for function in (twice, torch.compile(twice, fullgraph=True, backend="aot_eager")):
        ran.clear()
        out = function(x)
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert torch.equal(out, 3 * x + 4 * x)
        assert torch.equal(grad, torch.full_like(x, 7))
        assert ran == ["forward"] * 2 + ["backward"] * 2
    assert torch.autograd.gradcheck(lambda x: scaled(x, 2.0), (x,))


def test_the_compiler_sees_one_node() -> None:
    seen: list[str] = []

    def compiler(module: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.extend(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return module

    torch.compile(twice, fullgraph=True, backend=compiler)(torch.randn(3))
    assert sum("test_scaled" in name for name in seen) == 2
    assert not any("mul" in name for name in seen)


def test_whoever_watches_sees_the_operator() -> None:
    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen: list[str] = []
    with Watching():
        twice(torch.randn(3))
    assert sum("test_scaled" in name for name in seen) == 2


def test_tensors_without_numbers_run_nothing() -> None:
    ran.clear()
    with FakeTensorMode() as mode:
        x = torch.empty(3, requires_grad=True)
        twice(x).sum().backward()
    twice(mode.from_tensor(torch.empty(3)))
    assert not ran


def test_what_needs_no_gradient_records_none() -> None:
    assert not scaled(torch.randn(3), 2.0).requires_grad
    with torch.no_grad():
        assert not scaled(torch.randn(3, requires_grad=True), 2.0).requires_grad


def test_the_operator_keeps_its_promises() -> None:
    torch.library.opcheck(scaled.known, (torch.randn(3, requires_grad=True), 2.0))


@pytest.mark.parametrize("shape", [(2, 5, 3, 4), (1, 5, 3, 4), (2, 5, 1, 4), (1, 1, 1, 4)])
def test_one_row_or_head_stands_for_all_as_if_it_were_there(shape: tuple[int, ...]) -> None:
    whole = (2, 5, 3, 4)
    cos = torch.randn(shape[::-1]).permute(3, 2, 1, 0)
    found, _, strides = broadcast_strides(cos, cos, whole)
    assert torch.equal(torch.as_strided(found, whole, (*strides, 1)), cos.expand(whole))


def test_cosines_of_another_text_stand_for_nothing() -> None:
    cos = torch.randn(1, 4, 1, 4)
    with pytest.raises(ValueError, match=r"\(1, 4, 1, 4\).*\(2, 5, 3, 4\)"):
        broadcast_strides(cos, cos, (2, 5, 3, 4))


# Starting kernels.


@pytest.mark.slow
def test_kernels_are_started_as_triton_itself_would_start_them() -> None:
    pytest.importorskip("triton")
    folders = str(ROOT), str(Path(ops.__file__).parents[2])
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(folders)}
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
    """Notes what it is given, and which GPU is the current one when it is started, before and after it is compiled."""

    arg_names = ("tensor",)

    def __init__(self) -> None:
        self.started_on: list[int] = []
        self.taken: list[Any] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., NotedKernel]:
        def run(*given: Any) -> NotedKernel:
            self.started_on.append(torch.cuda.current_device())
            self.taken += given
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
    monkeypatch.setattr(ops, "_found", {})
    kernel = NotedKernel()
    elsewhere, here = torch.zeros(4).as_subclass(OnAnotherGpu), torch.zeros(4)
    for tensor in (elsewhere, elsewhere, here, elsewhere):
        start(kernel, (1,), (tensor,), ())
    assert kernel.started_on == [1, 1, 0, 1]
    assert current == [0]


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
    monkeypatch.setattr(ops, "_found", {})
    kernel, here, astray = NotedKernel(), torch.zeros(4).as_subclass(OnThisGpu), torch.zeros(4)
    for tensor in (here, here, astray):
        start(kernel, (1,), (tensor,), ())
    first, second, third = kernel.taken
    assert first is here
    assert second == here.data_ptr()
    assert third is astray
