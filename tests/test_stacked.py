"""Layers of several models at once: numbers and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from contentrope.errors import InputError
from contentrope.stacked import PARTS, can_be_stacked, layer_norm, linear, stack
from tests.support import lively_model, random_ids


def tensors(models: int, rows: int, places: int, size: int = 4, out: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(models + rows)
    shapes = ((models * rows, places, size), (models, out, size), (models, out))
    return [torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes]


def apart(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.cat([F.linear(*own) for own in zip(x.chunk(len(weight)), weight, bias, strict=True)])


@settings(max_examples=30, deadline=None)
@given(models=st.integers(1, 4), rows=st.integers(1, 5), places=st.integers(1, 2 * PARTS))
def test_linear_layers_together_are_those_apart(models: int, rows: int, places: int) -> None:
    given = tensors(models, rows, places)
    ours, theirs = linear(*given), apart(*given)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    weight = torch.randn_like(ours)
    grads = [torch.autograd.grad((out * weight).sum(), given) for out in (ours, theirs)]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


def test_gradients_agree_with_finite_differences() -> None:
    assert torch.autograd.gradcheck(linear, tuple(tensors(2, 2, 8)))


def test_compiled_gradients_are_the_same() -> None:
    given = tensors(3, 2, 16)

    def loss(*tensors: Tensor) -> Tensor:
        return linear(*tensors).tanh().square().sum()

    compiled: Any = torch.compile(loss, fullgraph=True)
    for one, other in zip(*(torch.autograd.grad(f(*given), given) for f in (compiled, loss)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("function", [linear, layer_norm])
def test_autocast_holds(function: Any) -> None:
    x, weight, bias = (t.detach().float().requires_grad_() for t in tensors(2, 3, 8, size=4, out=4))
    with torch.autocast("cpu", torch.bfloat16):
        out = linear(x, weight, bias) if function is linear else layer_norm(x, weight[:, 0], bias, 1e-5)
    out.float().square().sum().backward()
    assert out.dtype == (torch.bfloat16 if function is linear else torch.float32)
    assert all(t.grad is not None and t.grad.dtype == torch.float32 for t in (x, weight, bias))


@pytest.mark.parametrize("backend", ["reference", "tiled", "fused"])
@pytest.mark.parametrize("scheme", ["content", "random"])
@pytest.mark.parametrize("sharp", [False, True], ids=["plain", "sharp"])
def test_whole_models_together_are_those_apart_with_every_backend(sharp: bool, scheme: str, backend: str) -> None:
    if backend == "fused":
        pytest.importorskip("triton")
    settings = {"layers": 2, "backend": backend, "options": {"competition": 0.5, "learn_sharpness": sharp}}
    models = [lively_model(scheme, dtype=torch.float32, seed=seed, **settings) for seed in (1, 2)]
    ids = random_ids(4, 31)

    def read(model: Any) -> Tensor:
        torch.manual_seed(0)  # what is drawn at random is drawn for rows, whoever reads them
        return model(ids)

    apart = [read(model) for model in models]
    assert not torch.allclose(*apart, atol=0.1)
    expected = torch.cat((apart[0][:2], apart[1][2:]))
    torch.testing.assert_close(read(stack(models)), expected, rtol=0, atol=1e-4)


def test_models_with_weights_that_cannot_stand_side_by_side_are_refused() -> None:
    models = [lively_model("content", options={"learn_competition": True}) for _ in range(2)]
    assert not can_be_stacked(models[0])
    with pytest.raises(InputError, match=r"PerHead has weights of its own \(learned\)"):
        stack(models)
    assert can_be_stacked(lively_model("content", options={"learn_sharpness": True}))
