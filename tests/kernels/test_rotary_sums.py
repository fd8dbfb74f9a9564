"""Gradients of tokens summed by unit, on a GPU or in Triton's interpreter, against sums in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton")

from contentrope.kernels.rotary import TOKENS_AT_ONCE, shared_angles

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def summed(by_token: Tensor, slot: Tensor, slots: int) -> Tensor:
    """What the kernel makes of it."""
    angles = by_token.new_zeros(len(by_token), slots, *by_token.shape[2:]).requires_grad_()
    shared = shared_angles(angles, slot, slots)
    assert shared.shape == by_token.shape
    (found,) = torch.autograd.grad(shared, angles, by_token)
    return found


def defined(by_token: Tensor, slot: Tensor, slots: int) -> Tensor:
    sums = by_token.new_zeros(len(by_token), slots, *by_token.shape[2:], dtype=torch.float64)
    index = slot.long()[..., None, None].expand_as(by_token)
    return sums.scatter_add_(1, index, by_token.double())


def slots_of(steps: list[int]) -> Tensor:
    """By how much the number grows from token to token."""
    return torch.tensor(steps, dtype=torch.int32, device=DEVICE).cumsum(0, dtype=torch.int32)[None]


@given(
    steps=st.lists(st.sampled_from([0, 0, 0, 1]), max_size=5 * TOKENS_AT_ONCE),
    more=st.integers(0, 100),
    kv_heads=st.integers(1, 3),
    pairs=st.sampled_from([1, 5, 48]),
)
def test_every_slot_gets_the_sum_of_its_tokens(steps: list[int], more: int, kv_heads: int, pairs: int) -> None:
    slot = slots_of([0, *steps])
    slots = int(slot[0, -1]) + 1 + more
    by_token = torch.randn(1, slot.shape[1], kv_heads, pairs, device=DEVICE)
    exact = defined(by_token, slot, slots)
    found = summed(by_token, slot, slots)
    assert float((found - exact).norm()) <= 1e-6 * float(exact.norm())
    assert torch.equal(found == 0, exact == 0)  # slots without tokens


def test_rows_of_a_batch_are_summed_on_their_own(poisoned_memory: None) -> None:
    one, other = slots_of([0] * 40 + [1] * 10), slots_of([0] + [1] * 49)
    by_token = torch.randn(2, 50, 2, 3, device=DEVICE)
    found = summed(by_token, torch.cat((one, other)), 60)
    for row, slot in enumerate((one, other)):
        exact = defined(by_token[row : row + 1], slot, 60)[0]
        torch.testing.assert_close(found[row].double(), exact, rtol=1e-5, atol=1e-5)


def test_the_same_every_time() -> None:
    slot = slots_of([0] * 300 + [1] * 5)
    by_token = torch.randn(1, 305, 2, 40, device=DEVICE)
    assert torch.equal(summed(by_token, slot, 6), summed(by_token, slot, 6))


def test_the_operator_keeps_its_promises() -> None:
    angles = torch.randn(1, 4, 2, 3, device=DEVICE, requires_grad=True)
    # Its numbers mean nothing, so nothing compares them.
    utilities = "test_schema", "test_autograd_registration", "test_faketensor"
    torch.library.opcheck(shared_angles.known, (angles, slots_of([0, 0, 1, 1, 0]), 4), test_utils=utilities)
