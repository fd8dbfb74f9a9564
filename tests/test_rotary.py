"""Rotations against complex multiplication in float64: values, gradients, frequencies and precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contentrope.config import RotaryConfig
from contentrope.rotary import (
    PositionRotations,
    at_least_float32,
    inverse_frequencies,
    rotate,
    rotation_of,
)

LAYOUTS = ("half", "interleaved")
FAR = 100_000


def normal(*shape: int, seed: int = 0, **options: Any) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, **options)


def turned_as_complex(x: Tensor, angles: Tensor, layout: str) -> Tensor:
    """Each pair is a complex number, multiplied by exp(i angle). Knows nothing of how the library does it."""
    pairs = angles.shape[-1]
    angles = angles.repeat_interleave(x.shape[2] // angles.shape[2], dim=2)
    rotating, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    if layout == "half":
        numbers = torch.complex(rotating[..., :pairs], rotating[..., pairs:])
    else:
        numbers = torch.view_as_complex(rotating.unflatten(-1, (pairs, 2)).contiguous())
    rotated = numbers * torch.polar(torch.ones_like(angles), angles)
    parts = torch.view_as_real(rotated)
    if layout == "half":
        parts = parts.transpose(-1, -2)
    return torch.cat((parts.flatten(-2), rest), dim=-1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("heads_of_angles", [1, 2, 6], ids=["shared", "grouped", "per head"])
@pytest.mark.parametrize("pairs", [1, 3, 5], ids=["one pair", "partial", "full"])
def test_rotate_is_complex_multiplication(layout: str, heads_of_angles: int, pairs: int) -> None:
    x = normal(2, 7, 6, 10)
    angles = 9 * normal(2, 7, heads_of_angles, pairs, seed=1)
    expected = turned_as_complex(x, angles, layout)
    torch.testing.assert_close(rotate(x, rotation_of(angles), layout), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_dimensions_beyond_the_pairs_pass_through_to_the_bit(layout: str) -> None:
    x = normal(1, 4, 2, 9).bfloat16()
    rotated = rotate(x, rotation_of(normal(1, 4, 2, 3).float()), layout)
    assert torch.equal(rotated[..., 6:], x[..., 6:])
    assert not (rotated[..., :6] == x[..., :6]).any()


@given(seed=st.integers(0, 10**6), layout=st.sampled_from(LAYOUTS), pairs=st.integers(1, 4))
def test_the_norm_is_kept(seed: int, layout: str, pairs: int) -> None:
    x = normal(1, 3, 2, 8, seed=seed)
    rotated = rotate(x, rotation_of(100 * normal(1, 3, 2, pairs, seed=seed + 1)), layout)
    torch.testing.assert_close(rotated.norm(dim=-1), x.norm(dim=-1), rtol=1e-14, atol=0)


@given(seed=st.integers(0, 10**6), layout=st.sampled_from(LAYOUTS))
def test_composing_rotations_adds_their_angles(seed: int, layout: str) -> None:
    x, one, other = normal(1, 3, 2, 8, seed=seed), normal(1, 3, 2, 4, seed=seed + 1), normal(1, 3, 1, 4, seed=seed + 2)
    both = rotation_of(one).then(rotation_of(other))
    sum_of_angles = rotation_of(one + other)
    for found, expected in zip(both, sum_of_angles, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
    one_after_the_other = rotate(rotate(x, rotation_of(one), layout), rotation_of(other), layout)
    torch.testing.assert_close(rotate(x, both, layout), one_after_the_other, rtol=0, atol=1e-13)


def test_a_score_depends_on_the_difference_of_positions_only() -> None:
    rotations = PositionRotations(inverse_frequencies(RotaryConfig(), 1, 8))
    query, key = normal(1, 1, 1, 8), normal(1, 1, 1, 8, seed=1)

    def score(query_position: int, key_position: int) -> Tensor:
        at = [rotations.at(torch.tensor([[p]]), torch.float64, bound=1 << 17) for p in (query_position, key_position)]
        return (rotate(query, at[0]) * rotate(key, at[1])).sum()

    torch.testing.assert_close(score(10, 3), score(90_010, 90_003), rtol=0, atol=1e-10)
    assert (score(10, 3) - score(10, 4)).abs() > 1e-3


def test_only_where_leaves_the_identity_elsewhere() -> None:
    rotation = rotation_of(normal(2, 3, 2, 4))
    mask = torch.tensor([[True, False, False], [False, True, True]])
    chosen = rotation.only_where(mask)
    assert torch.equal(chosen.cos[mask], rotation.cos[mask])
    assert torch.equal(chosen.sin[mask], rotation.sin[mask])
    assert (chosen.cos[~mask] == 1).all()
    assert (chosen.sin[~mask] == 0).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("pairs", "heads_of_angles"), [(2, 4), (1, 4), (2, 2), (1, 1)], ids=["full", "partial", "grouped", "shared"]
)
def test_gradients_of_rotate(layout: str, pairs: int, heads_of_angles: int) -> None:
    x = normal(2, 3, 4, 4, requires_grad=True)
    angles = normal(2, 3, heads_of_angles, pairs, seed=1, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, a: rotate(x, rotation_of(a), layout), (x, angles))
    assert torch.autograd.gradcheck(lambda x: rotate(x, rotation_of(angles.detach()), layout), (x,))
    assert torch.autograd.gradcheck(lambda a: rotate(x.detach(), rotation_of(a), layout), (angles,))


def test_gradients_of_rotations_shared_by_rows_and_tokens() -> None:
    """Sizes of one broadcast in the forward pass, so the backward pass has to sum over them."""
    x, angles = normal(2, 3, 2, 4, requires_grad=True), normal(1, 1, 1, 2, seed=1, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, a: rotate(x, rotation_of(a)), (x, angles))


def test_gradients_through_composition_and_choice() -> None:
    x, one, other = normal(1, 3, 2, 4), normal(1, 3, 2, 2, seed=1), normal(1, 3, 1, 2, seed=2)
    mask = torch.tensor([[True, False, True]])
    inputs = tuple(t.requires_grad_() for t in (x, one, other))
    assert torch.autograd.gradcheck(
        lambda x, a, b: rotate(x, rotation_of(a).then(rotation_of(b).only_where(mask))), inputs
    )


def test_per_head_frequencies_are_the_powers_of_the_base() -> None:
    found = inverse_frequencies(RotaryConfig(base=500.0), heads=3, head_dim=12)
    assert found.dtype == torch.float64
    expected = [[500.0 ** (-b / 6) for b in range(6)]]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-15, atol=0)


def test_model_wide_frequencies_are_dealt_out_to_the_heads_in_order() -> None:
    found = inverse_frequencies(RotaryConfig(frequencies="model_wide"), heads=3, head_dim=8)
    expected = [[10000.0 ** (-(h * 4 + b) / 12) for b in range(4)] for h in range(3)]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-15, atol=0)


def test_a_fraction_spreads_the_series_over_the_rotating_pairs_only() -> None:
    found = inverse_frequencies(RotaryConfig(fraction=0.5), heads=1, head_dim=16)
    torch.testing.assert_close(found[0].log10(), -torch.arange(4, dtype=torch.float64), rtol=0, atol=1e-14)


def test_tables_grow_and_stay_exact() -> None:
    frequency = inverse_frequencies(RotaryConfig(), heads=1, head_dim=8)
    growing = PositionRotations(frequency)
    for bound in (1, 3, 4, 5, 1000, 70_000, 2):
        positions = torch.tensor([[0, bound // 2, bound - 1]])
        found = growing.at(positions, torch.float64, bound=bound)
        angles = positions[..., None, None].double() * frequency
        assert torch.equal(found.cos, angles.cos())
        assert torch.equal(found.sin, angles.sin())


def test_each_dtype_has_its_own_table_rounded_once_from_float64() -> None:
    rotations = PositionRotations(inverse_frequencies(RotaryConfig(), heads=1, head_dim=8))
    positions = torch.arange(900, 1000)[None]
    exact = rotations.at(positions, torch.float64, bound=1000)
    narrow = rotations.at(positions, torch.float32, bound=1000)
    assert torch.equal(narrow.cos, exact.cos.float())
    assert torch.equal(narrow.sin, exact.sin.float())


def test_the_amplitude_stretches_cosine_and_sine() -> None:
    frequency = inverse_frequencies(RotaryConfig(), heads=1, head_dim=8)
    positions = torch.arange(9)[None]
    stretched = PositionRotations(frequency, amplitude=1.5).at(positions, torch.float64, bound=9)
    length = (stretched.cos.square() + stretched.sin.square()).sqrt()
    torch.testing.assert_close(length, torch.full_like(length, 1.5), rtol=1e-15, atol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_far_positions_lose_nothing_but_the_rounding_of_the_result(layout: str, dtype: torch.dtype) -> None:
    frequency = inverse_frequencies(RotaryConfig(), heads=1, head_dim=64)
    x = normal(1, 64, 2, 64).to(dtype)
    positions = torch.arange(FAR, FAR + 64)[None]
    angles = positions[..., None, None].double() * frequency
    exact = turned_as_complex(x.double(), angles, layout)

    kept_wide = PositionRotations(frequency).at(positions, at_least_float32(dtype), bound=FAR + 64)
    found = rotate(x, kept_wide, layout)
    assert found.dtype == dtype
    # Half a unit in the last place of the result, and a few float32 roundings of the products.
    allowed = torch.finfo(dtype).eps / 2 * exact.abs() + 4 * torch.finfo(torch.float32).eps * x.double().abs().amax()
    assert ((found.double() - exact).abs() <= allowed).all()

    # Negative control: what is lost if the angle itself is computed in the model's dtype. float16 cannot
    # even hold the position.
    careless_angles = positions[..., None, None].to(torch.bfloat16) * frequency.to(torch.bfloat16)
    careless = rotate(x, rotation_of(careless_angles.float()), layout)
    assert ((careless.double() - exact).abs() > allowed).double().mean() > 0.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_dtype_is_kept_forward_and_backward(dtype: torch.dtype, layout: str) -> None:
    x = normal(1, 3, 2, 6).to(dtype).requires_grad_()
    angles = normal(1, 3, 2, 2).to(at_least_float32(dtype)).requires_grad_()
    out = rotate(x, rotation_of(angles), layout)
    out.float().sum().backward()
    assert out.dtype == dtype
    assert x.grad is not None
    assert x.grad.dtype == dtype
    assert angles.grad is not None
    assert angles.grad.dtype == at_least_float32(dtype)


def test_angles_are_kept_in_float32_at_least() -> None:
    assert at_least_float32(torch.bfloat16) == at_least_float32(torch.float16) == torch.float32
    assert at_least_float32(torch.float32) == torch.float32
    assert at_least_float32(torch.float64) == torch.float64


def test_positions_from_an_origin_need_no_table_of_those_before_it() -> None:
    frequencies = inverse_frequencies(RotaryConfig(), 2, 8)
    rotations, near_zero = PositionRotations(frequencies), PositionRotations(frequencies)
    origin, positions = 10**9, torch.tensor([[0, 3, 7]])
    found = rotations.at(positions, torch.float64, bound=8, origin=origin)  # that many rows would not fit
    exact = rotation_of((origin + positions)[..., None, None] * frequencies)
    torch.testing.assert_close(found.cos, exact.cos, rtol=0, atol=1e-15)
    torch.testing.assert_close(found.sin, exact.sin, rtol=0, atol=1e-15)
    # Positions from zero are not read from the same table.
    again = rotations.at(positions, torch.float64, bound=8)
    assert torch.equal(again.cos, near_zero.at(positions, torch.float64, bound=8).cos)
