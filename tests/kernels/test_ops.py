"""An operator gives the same numbers and gradients to the compiler and to autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from contentrope.kernels.ops import Differentiable, Operator, broadcast_strides

ran: list[str] = []


def _scaled(x: Tensor, factor: float) -> Tensor:
    ran.append("forward")
    return x * factor


def _scaled_backward(grad: Tensor, factor: float) -> Tensor:
    ran.append("backward")
    return grad * factor


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.factor = inputs[1]


def _differentiate(backward: Callable[..., Tensor], ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return backward(grad, ctx.factor), None


def _same_shape(x: Tensor, factor: float) -> Tensor:
    return torch.empty_like(x)


scaled = Differentiable(
    Operator("test_scaled(Tensor x, float factor) -> Tensor", _scaled, _same_shape),
    Operator("test_scaled_backward(Tensor grad, float factor) -> Tensor", _scaled_backward, _same_shape),
    _keep,
    _differentiate,
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
