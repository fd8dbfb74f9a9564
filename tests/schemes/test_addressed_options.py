"""What is random about addresses in training: the noise of ``content``, the draws of ``random``."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import contentrope as cr
from contentrope.context import AddressedContext
from tests.support import TERMINATOR, lively_model, random_ids


def logits(model: cr.Transformer, ids: Tensor, seed: int) -> Tensor:
    torch.manual_seed(seed)
    return model(ids)


def angles_seen(model: cr.Transformer, ids: Tensor, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """The addresses of one call, (batch, slots, kv_heads, pairs)."""
    seen: list[Tensor] = []
    set_rotations = AddressedContext._set_rotations

    def spy(context: AddressedContext, by_slot: Tensor | None) -> None:
        assert by_slot is not None
        seen.append(by_slot)
        set_rotations(context, by_slot)

    monkeypatch.setattr(AddressedContext, "_set_rotations", spy)
    model(ids)
    return seen[0].detach()


def test_noise_acts_in_training_only() -> None:
    noisy, ids = lively_model("content", options={"noise": 0.7}), random_ids(2, 40)
    plain = lively_model("content")
    plain.load_state_dict(noisy.state_dict())
    assert torch.equal(logits(noisy, ids, 1), plain(ids))
    noisy.train()
    assert not torch.allclose(logits(noisy, ids, 1), plain(ids))
    assert not torch.allclose(logits(noisy, ids, 1), logits(noisy, ids, 2))
    assert torch.equal(logits(noisy, ids, 1), logits(noisy, ids, 1)), "torch.manual_seed governs the noise"


def test_noise_waits_for_the_first_completed_unit() -> None:
    """An open unit has no address to be noisy, and a closing token's own address cancels inside its unit."""
    model = lively_model("content", options={"noise": 0.7}).train()
    ids = random_ids(1, 12, end_rate=0.0)
    ids[0, 6] = TERMINATOR
    one, other = logits(model, ids, 1), logits(model, ids, 2)
    torch.testing.assert_close(one[:, :7], other[:, :7], rtol=0, atol=1e-12)
    assert (one[:, 7:] - other[:, 7:]).abs().amax(-1).min() > 1e-6


def test_noise_has_the_standard_deviation_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    noisy, ids = lively_model("content", options={"noise": 0.7}), random_ids(8, 200)
    exact = angles_seen(noisy, ids, monkeypatch)
    monkeypatch.undo()
    noise = angles_seen(noisy.train(), ids, monkeypatch) - exact
    assert noise.mean().abs() < 5 * 0.7 / noise.numel() ** 0.5
    assert noise.std().item() == pytest.approx(0.7, rel=5 / (2 * noise.numel()) ** 0.5)


@pytest.mark.parametrize("training", [True, False])
def test_random_angles_are_standard_normal_in_training_and_out_of_it(
    training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = lively_model("random").train(training)
    angles = angles_seen(model, random_ids(8, 200), monkeypatch)
    assert angles.mean().abs() < 5 / angles.numel() ** 0.5
    assert angles.std().item() == pytest.approx(1.0, rel=5 / (2 * angles.numel()) ** 0.5)


def test_a_negative_noise_is_refused() -> None:
    with pytest.raises(cr.InputError, match=r"noise must be at least 0, got -0\.5"):
        lively_model("content", options={"noise": -0.5})
