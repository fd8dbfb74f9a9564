"""Queries and keys rotated in one kernel, on a GPU or in Triton's interpreter, against rotations in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import contentrope as cr
from contentrope.attention.fused import address_rotations, rotations_of
from contentrope.rotary import Rotation, rotate, rotation_of

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from contentrope.kernels.rotary import packed_offsets  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}


class Example:
    """Random queries, keys, places, units and addresses in float64, and what the outputs are weighed with."""

    def __init__(
        self,
        heads: int = 4,
        kv_heads: int = 2,
        head_dim: int = 8,
        pairs: int = 4,
        seq: int = 37,
        end_rate: float = 0.2,
        places: tuple[int, int] = (1, 1),
    ) -> None:
        torch.manual_seed(seq)
        self.units = cr.segment((torch.rand(2, seq) >= end_rate).long().to(DEVICE), cr.Terminators({0}), max_length=9)
        self.query, self.key = (random(2, seq, count, head_dim) for count in (heads, kv_heads))
        self.angles = random(2, seq, kv_heads, pairs)
        self.place = random(places[0], seq, places[1], pairs)
        self.weights = [torch.randn_like(x) for x in (self.query, self.key, self.key)]

    @property
    def leaves(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.angles


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).to(DEVICE)


def defined(example: Example, query: Tensor, key: Tensor, angles: Tensor, layout: Any) -> list[Tensor]:
    local = Rotation(example.place.cos(), example.place.sin())
    slot = example.units.unit[..., None, None].expand(-1, -1, *angles.shape[2:])
    address = rotation_of(angles.gather(1, slot))
    return [
        rotate(query, local.then(address.only_where(example.units.closes)), layout),
        rotate(key, local, layout),
        rotate(key, local.then(address), layout),
    ]


def in_one_kernel(example: Example, query: Tensor, key: Tensor, angles: Tensor, layout: Any) -> list[Tensor]:
    local = Rotation(example.place.cos().float(), example.place.sin().float())
    rotations = rotations_of(local, angles.float(), example.units.unit, example.units.closes)
    return list(rotations.of(query, key, layout))


def require_equal(example: Example, layout: str = "half", dtype: torch.dtype = torch.float32) -> None:
    """The same outputs and the same gradients, from the same rounded inputs."""
    inputs = [leaf.to(dtype) if leaf is not example.angles else leaf.float() for leaf in example.leaves]
    weights = [weight.to(dtype) for weight in example.weights]
    results = []
    for function in (defined, in_one_kernel):
        wide = function is defined
        leaves = [(leaf.double() if wide else leaf.clone()).requires_grad_() for leaf in inputs]
        outputs = function(example, *leaves, layout)
        loss = sum((out * weight.to(out.dtype)).sum() for out, weight in zip(outputs, weights, strict=True))
        gradients = torch.autograd.grad(torch.as_tensor(loss), leaves)
        results.append([*(out.detach() for out in outputs), *gradients])
    for exact, found in zip(*results, strict=True):
        assert float((found.double() - exact).norm()) <= ROUNDING[dtype] * float(exact.norm())


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "pairs"), [(2, 2, 8, 4), (6, 2, 10, 3), (1, 1, 60, 30), (4, 1, 4, 1)]
)
def test_outputs_and_gradients_are_those_of_rotations(
    heads: int, kv_heads: int, head_dim: int, pairs: int, layout: str
) -> None:
    for places in ((1, 1), (2, 1), (2, kv_heads)):
        require_equal(Example(heads, kv_heads, head_dim, pairs, places=places), layout)


@settings(max_examples=15)
@given(seq=st.integers(1, 70), end_rate=st.sampled_from([0.0, 0.1, 0.6, 1.0]))
def test_any_units(seq: int, end_rate: float) -> None:
    require_equal(Example(seq=seq, end_rate=end_rate))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    require_equal(Example(), dtype=dtype)


# Where a GPU rounds to bfloat16, Triton's interpreter cuts off.
@pytest.mark.parametrize("dtype", [torch.float16] + [torch.bfloat16] * (DEVICE == "cuda"))
def test_half_precision_rounds_once(dtype: torch.dtype) -> None:
    example = Example()
    low = example.query.to(dtype), example.key.to(dtype)
    expected = defined(example, *(x.float() for x in low), example.angles.float(), "half")
    for found, exact in zip(in_one_kernel(example, *low, example.angles, "half"), expected, strict=True):
        assert found.dtype == dtype
        # At a tie it may go either way; a second rounding would change many more.
        assert float((found != exact.to(dtype)).float().mean()) < 0.01


def test_the_parts_of_one_product_are_read_where_they_lie() -> None:
    example = Example(heads=2, kv_heads=2)
    together = torch.cat((example.query, example.key, example.key), dim=2).float()
    query, key, _ = together.split(2, dim=2)
    assert not query.is_contiguous()
    rotated = query.transpose(2, 3).contiguous().transpose(2, 3)  # dimensions apart
    expected = in_one_kernel(example, query.contiguous(), key.contiguous(), example.angles, "half")
    for states in ((query, key), (rotated, key)):
        for found, exact in zip(in_one_kernel(example, *states, example.angles, "half"), expected, strict=True):
            assert torch.equal(found, exact)


def test_zero_addresses_change_nothing() -> None:
    example = Example()
    query, key = example.query.float(), example.key.float()
    rotated, local, addressed = in_one_kernel(example, query, key, torch.zeros_like(example.angles), "half")
    assert torch.equal(local, addressed)
    open_ones = ~example.units.closes
    other = in_one_kernel(example, query, key, example.angles, "half")[0]
    assert torch.equal(rotated[open_ones], other[open_ones])
    assert not torch.equal(rotated, other)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "pairs"), [(2, 2, 8, 4), (6, 2, 10, 3)])
def test_queries_and_keys_that_are_at_their_places(
    heads: int, kv_heads: int, head_dim: int, pairs: int, layout: Any
) -> None:
    example = Example(heads, kv_heads, head_dim, pairs)
    weights = [example.weights[0], example.weights[2]]
    results = []
    for wide in (True, False):
        query, key, angles = (x.to(torch.float64 if wide else torch.float32).requires_grad_() for x in example.leaves)
        if wide:
            address = rotation_of(angles)
            closing = address.only_where(example.units.closes)
            outputs = [rotate(query, closing, layout), rotate(key, address, layout)]
        else:
            rotated, local, addressed = address_rotations(angles, example.units.closes).of(query, key, layout)
            assert local is key
            outputs = [rotated, addressed]
        loss = sum((out * weight.to(out.dtype)).sum() for out, weight in zip(outputs, weights, strict=True))
        results.append([*outputs, *torch.autograd.grad(torch.as_tensor(loss), (query, key, angles))])
    for exact, found in zip(*results, strict=True):
        assert float((found - exact).detach().norm()) <= 1e-6 * float(exact.detach().norm())


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "pairs"), [(2, 2, 8, 4), (6, 2, 10, 3)])
@pytest.mark.parametrize("places", [(1, 1), (2, 1), (2, 2)])
def test_both_versions_that_a_window_asks_for(
    heads: int, kv_heads: int, head_dim: int, pairs: int, places: tuple[int, int], layout: Any, poisoned_memory: None
) -> None:
    """Near queries and keys, addressed keys, far queries; a query that closes its unit is one like any other."""
    require_equal_versions(Example(heads, kv_heads, head_dim, pairs, places=places), layout, near=True)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_far_versions_of_queries_and_keys_that_are_near_already(layout: Any, poisoned_memory: None) -> None:
    require_equal_versions(Example(6, 2, 10, 3, places=(2, 1)), layout, near=False)


def require_equal_versions(example: Example, layout: Any, near: bool) -> None:
    places = [example.place, 0.3 * example.place + 1, 5 - example.place]  # local, near, far
    weights = [example.weights[i] for i in (0, 1, 2, 0)]
    weights[3] = weights[3].flip(1)
    results = []
    for dtype in (torch.float64, torch.float32):
        query, key, angles = (x.to(dtype).requires_grad_() for x in example.leaves)
        local, here, there = (rotation_of(x.to(dtype)) for x in places)
        if dtype == torch.float64:
            address = rotation_of(angles.gather(1, example.units.unit[..., None, None].expand_as(angles)))
            from_here = [rotate(query, here, layout), rotate(key, here, layout)] if near else [query, key]
            outputs = [*from_here, rotate(key, local.then(address), layout), rotate(query, there, layout)]
        elif near:
            units = example.units.unit, example.units.closes
            rotations = rotations_of(local, angles, *units, near=here, far_query=there)
            outputs = list(rotations.of_window(query, key, layout))
        else:
            by_token = angles.gather(1, example.units.unit[..., None, None].expand_as(angles))
            rotations = address_rotations(by_token, example.units.closes, far_key=local, far_query=there)
            outputs = list(rotations.of_window(query, key, layout))
            assert outputs[0] is query
            assert outputs[1] is key
        loss = sum((out * weight.to(out.dtype)).sum() for out, weight in zip(outputs, weights, strict=True))
        results.append([*outputs, *torch.autograd.grad(torch.as_tensor(loss), (query, key, angles))])
    for exact, found in zip(*results, strict=True):
        assert float((found - exact).detach().norm()) <= 1e-6 * float(exact.detach().norm())


def test_addresses_that_nobody_trains_get_no_gradient() -> None:
    example = Example()
    query, key = (x.float().requires_grad_() for x in (example.query, example.key))
    outputs = in_one_kernel(example, query, key, example.angles, "half")
    sum(out.sum() for out in outputs).backward()  # type: ignore[union-attr]
    assert query.grad is not None
    assert key.grad is not None
    assert example.angles.grad is None


def test_every_number_is_written(poisoned_memory: None) -> None:
    require_equal(Example(heads=6, kv_heads=2, head_dim=10, pairs=3))


def test_the_operator_keeps_its_promises() -> None:
    from contentrope.kernels.rotary import rotated_states

    example = Example(seq=12)
    query, key, angles = (leaf.float().requires_grad_() for leaf in example.leaves)
    local = Rotation(example.place.cos().float(), example.place.sin().float())
    rotations = rotations_of(local, angles, example.units.unit, example.units.closes)
    by_token = rotations.angles.detach().requires_grad_()  # type: ignore[union-attr]
    torch.library.opcheck(rotated_states.known, (query, key, by_token, *rotations.tensors(), False, True))
    torch.library.opcheck(rotated_states.known, (query, key, by_token, *rotations.tensors(), False, False))
    window = rotations._replace(near=local, far_query=local).tensors()
    torch.library.opcheck(rotated_states.known, (query, key, by_token, *window, False, True))
    torch.library.opcheck(rotated_states.known, (query, key, by_token, *window, False, False))


@triton.jit
def offset_kernel(out, batch, length, HEADS: tl.constexpr, WIDTH: tl.constexpr):  # noqa: N803
    tl.store(out, packed_offsets(tl.cast(batch, tl.int64), 0, 0, length, HEADS, WIDTH))


def test_rows_of_millions_of_tokens_have_offsets_beyond_32_bits() -> None:
    out = torch.zeros((), dtype=torch.int64, device=DEVICE)
    offset_kernel[(1,)](out, 3, 2**20, HEADS=32, WIDTH=128)
    assert out.item() == 3 * 2**20 * 32 * 128
