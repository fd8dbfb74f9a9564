"""The descriptor in one kernel, on a GPU or in Triton's interpreter, against the definition in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import contentrope as cr
from contentrope.address import sum_by_unit
from contentrope.rotary import Rotation, rotate
from tests.support import lively_model, random_ids

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).to(DEVICE)


def defined(
    x: Tensor, units: cr.Units, angles: Tensor, weight: Tensor, bias: Tensor, head_dim: int, layout: Any
) -> Tensor:
    rotated = rotate(x.unflatten(-1, (-1, head_dim)), Rotation(angles.cos(), angles.sin()), layout).flatten(-2)
    sums = sum_by_unit(rotated, units, units.unit)
    return F.layer_norm(sums.total / sums.tokens.clamp(min=1)[..., None], weight.shape, weight, bias, 1e-5)


def fused(
    x: Tensor, units: cr.Units, angles: Tensor, weight: Tensor, bias: Tensor, head_dim: int, layout: Any
) -> Tensor:
    from contentrope.kernels.address import unit_descriptors

    rotation = angles.cos().float(), angles.sin().float()
    return unit_descriptors(x, units.unit, *rotation, weight, bias, 1e-5, head_dim, layout == "interleaved")[0]


def require_equal(
    heads: int,
    head_dim: int,
    pairs: int,
    layout: str,
    *,
    seq: int = 37,
    end_rate: float = 0.2,
    longest: int = 9,
    per_head: bool = False,
) -> None:
    torch.manual_seed(seq)
    dim = heads * head_dim
    units = cr.segment((torch.rand(2, seq) >= end_rate).long().to(DEVICE), cr.Terminators({0}), max_length=longest)
    x, weight, bias = (random(*size) for size in ((2, seq, dim), (dim,), (dim,)))
    angles = random(2, seq, heads if per_head else 1, pairs)
    seen = random(2, seq, dim)
    results = []
    for function, dtype in ((defined, torch.float64), (fused, torch.float32)):
        leaves = [leaf.to(dtype).requires_grad_() for leaf in (x, weight, bias)]
        out = function(leaves[0], units, angles, *leaves[1:], head_dim, layout)
        results.append([out.detach(), *torch.autograd.grad((out * seen.to(dtype)).sum(), leaves)])
    for exact, found in zip(*results, strict=True):
        assert float((found - exact).norm()) <= 1e-6 * float(exact.norm())


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize(("heads", "head_dim", "pairs"), [(2, 8, 4), (3, 10, 3), (1, 60, 30), (5, 4, 1)])
def test_output_and_gradients_are_the_definitions(heads: int, head_dim: int, pairs: int, layout: str) -> None:
    require_equal(heads, head_dim, pairs, layout)
    require_equal(heads, head_dim, pairs, layout, per_head=True)


@settings(max_examples=8)
@given(seq=st.integers(1, 50), end_rate=st.sampled_from([0.0, 0.1, 0.6, 1.0]), longest=st.integers(1, 60))
def test_any_units(seq: int, end_rate: float, longest: int) -> None:
    require_equal(2, 6, 2, "half", seq=seq, end_rate=end_rate, longest=longest)


@pytest.mark.parametrize("longest", [31, 32, 33, 65, 100])
def test_units_longer_than_what_is_summed_at_once(longest: int) -> None:
    require_equal(2, 8, 4, "half", seq=100, end_rate=0.0, longest=longest)


@pytest.mark.parametrize("longest", [1, 7, 50])
def test_wide_embeddings_of_which_few_are_summed_at_once(longest: int) -> None:
    from contentrope.kernels.address import _tokens_at_once

    assert _tokens_at_once(3 * 1000) == 2
    require_equal(3, 1000, 400, "half", seq=50, end_rate=0.0, longest=longest)


def test_every_number_is_written(poisoned_memory: None) -> None:
    """Also those of slots that no unit has: a matrix product follows."""
    require_equal(2, 8, 4, "half")


def test_the_operator_keeps_its_promises() -> None:
    from contentrope.kernels.address import unit_descriptors

    units = cr.segment(random_ids(2, 12).to(DEVICE), cr.Terminators({0}))
    leaves = [random(*size).float().requires_grad_() for size in ((2, 12, 8), (8,), (8,))]
    angles = random(1, 12, 1, 2).float()
    given_all = (leaves[0], units.unit, angles.cos(), angles.sin(), *leaves[1:], 1e-5, 4, False)
    torch.library.opcheck(unit_descriptors.known, given_all)


def test_a_model_reads_the_same_with_it() -> None:
    ids = random_ids(2, 45).to(DEVICE)
    tiled, whole = (
        lively_model("content", dtype=torch.float32, backend=backend, options={"competition": 1.0}).to(DEVICE)
        for backend in ("tiled", "fused")
    )
    expected, found = tiled(ids), whole(ids)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    for model, logits in ((tiled, expected), (whole, found)):
        logits.square().mean().backward()
        assert model.scheme.address.project.weight.grad.norm() > 0
    for ours, theirs in zip(whole.parameters(), tiled.parameters(), strict=True):
        assert float((ours.grad - theirs.grad).norm()) <= 1e-3 * float(theirs.grad.norm()) + 1e-6
