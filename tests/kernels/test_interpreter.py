"""Triton's interpreter, as the suite mends it, computes what a GPU would."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("for Triton's interpreter, which the suite has off where there is a GPU", allow_module_level=True)

import triton.language as tl  # noqa: E402


@triton.jit
def product_kernel(left, right, target, SIZE: tl.constexpr):  # noqa: N803
    column = tl.arange(0, SIZE)
    place = column[:, None] * SIZE + column[None, :]
    tl.store(target + place, tl.dot(tl.load(left + place), tl.load(right + place)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_products_of_every_dtype_are_those_of_the_numbers(dtype: torch.dtype) -> None:
    left, right = torch.randn(2, 16, 16).to(dtype)
    target = torch.empty(16, 16)
    product_kernel[(1,)](left, right, target, SIZE=16)
    torch.testing.assert_close(target, left.float() @ right.float())
