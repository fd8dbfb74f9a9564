"""Angles of the slots that are units, on a GPU or in Triton's interpreter, against a linear map in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton")

from contentrope.kernels.address import FEW, MANY, MANY_FROM, unit_angles

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Example:
    """Rows of text with so many units each, and what their angles are weighed with."""

    def __init__(self, units: list[int], length: int, dim: int, angles: int) -> None:
        torch.manual_seed(dim)
        number = torch.arange(length, device=DEVICE)
        self.slot = torch.stack([number.clamp(max=count - 1) for count in units])
        self.is_unit = number < torch.tensor(units, device=DEVICE)[:, None]
        sizes = (len(units), length, dim), (angles, dim), (angles,)
        self.leaves = [torch.randn(size, dtype=torch.float64).to(DEVICE) for size in sizes]
        self.weights = torch.randn(len(units), length, angles, dtype=torch.float64).to(DEVICE)

    def defined(self) -> list[Tensor]:
        leaves = [leaf.requires_grad_() for leaf in self.leaves]
        angles = torch.where(self.is_unit[..., None], F.linear(*leaves), 0.0)
        return [angles.detach(), *torch.autograd.grad((angles * self.weights).sum(), leaves)]

    def found(self) -> list[Tensor]:
        normed, weight, bias = (leaf.detach().float().requires_grad_() for leaf in self.leaves)
        angles = unit_angles(normed, self.slot, weight, bias)
        grads = torch.autograd.grad((angles * self.weights.float()).sum(), (normed, weight, bias))
        return [angles.detach(), *grads]

    def require_equal(self) -> None:
        for exact, found in zip(self.defined(), self.found(), strict=True):
            assert float((found - exact).norm()) <= 1e-6 * float(exact.norm())
            assert torch.equal(found == 0, exact == 0)  # no unit, no angle and no gradient


@settings(max_examples=20)
@given(
    units=st.lists(st.integers(1, 80), min_size=1, max_size=3),
    dim=st.sampled_from([1, 6, 64, 65, 130]),
    angles=st.sampled_from([1, 3, 32, 70]),
)
def test_angles_and_gradients_are_the_definitions(units: list[int], dim: int, angles: int) -> None:
    Example(units, 80, dim, angles).require_equal()


@pytest.mark.parametrize(("tile", "length"), [(FEW, 60), (MANY, MANY_FROM)], ids=["few", "many"])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_as_many_units_as_a_tile_has_rows_and_one_more_or_less(tile: dict[str, int], length: int, more: int) -> None:
    Example([tile["ROWS"] + more], length, 70, 70).require_equal()


@pytest.mark.parametrize("length", [150, MANY_FROM])
def test_every_token_its_own_unit(length: int) -> None:
    Example([length], length, 33, 7).require_equal()


def test_every_number_is_written(poisoned_memory: None) -> None:
    Example([1, 40, 100], 100, 70, 40).require_equal()


def test_slots_without_units_are_not_read() -> None:
    example = Example([3, 50], 100, 20, 10)
    expected = example.found()
    example.leaves[0][~example.is_unit] = float("nan")
    example.weights[~example.is_unit] = float("nan")
    for found, exact in zip(example.found(), expected, strict=True):
        assert torch.equal(found, exact)


def test_units_to_come_leave_earlier_ones_alone_to_the_last_bit() -> None:
    few, many = (Example([units], 100, 70, 40) for units in (10, 90))
    assert torch.equal(few.found()[0][:, :10], many.found()[0][:, :10])


def test_the_same_every_time() -> None:
    example = Example([100, 30], 100, 300, 40)
    for one, other in zip(example.found(), example.found(), strict=True):
        assert torch.equal(one, other)


def test_a_weight_that_lies_the_other_way_round() -> None:
    example = Example([20, 5], 30, 20, 10)
    normed, weight, bias = (leaf.float() for leaf in example.leaves)
    lying = weight.t().contiguous().t()
    assert torch.equal(unit_angles(normed, example.slot, lying, bias), unit_angles(normed, example.slot, weight, bias))


def test_no_text_gives_no_gradient() -> None:
    normed, weight, bias = (torch.randn(*size, device=DEVICE, requires_grad=True) for size in ((1, 0, 8), (4, 8), (4,)))
    angles = unit_angles(normed, torch.zeros(1, 0, dtype=torch.int64, device=DEVICE), weight, bias)
    assert angles.shape == (1, 0, 4)
    grads = torch.autograd.grad(angles.sum(), (normed, weight, bias))
    assert [float(grad.abs().sum()) for grad in grads] == [0, 0, 0]


def test_the_operator_keeps_its_promises() -> None:
    example = Example([3, 12], 12, 8, 4)
    normed, weight, bias = (leaf.float().requires_grad_() for leaf in example.leaves)
    torch.library.opcheck(unit_angles.known, (normed, example.slot, weight, bias))
