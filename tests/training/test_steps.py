"""One update: in parts or whole, in any precision, compiled or not, it is the same update."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from contentrope import ModelConfig, Transformer
from contentrope.errors import InputError
from contentrope.training import IGNORED, Batch, Stepper, TrainConfig, Windows

CONFIG = TrainConfig(steps=8, batch_size=6, learning_rate=1e-2, clip=1e6, seed=3)
WINDOWS = Windows(torch.arange(400) * 7919 % 11, length=7)


def small_model(scheme: str = "rope", seed: int = 1, dropout: float = 0.0) -> Transformer:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Transformer(
            ModelConfig(vocab_size=11, dim=8, layers=2, heads=2, scheme=scheme, terminators=(0,), dropout=dropout)
        )


def uneven_batch(step: int = 0) -> Batch:
    """One row without any target, one with a single one, the others with all of theirs."""
    batch = WINDOWS.at(step, CONFIG.batch_size, CONFIG.seed)
    targets = batch.targets.clone()  # they share memory with the inputs
    targets[0], targets[1, 1:] = IGNORED, IGNORED
    return Batch(batch.inputs, targets)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def losses_of(stepper: Stepper, steps: int = CONFIG.steps) -> list[float]:
    losses = []
    for step in range(steps):
        stepper.update(WINDOWS.at(step, stepper.config.batch_size, stepper.config.seed), step)
        losses.append(stepper.loss.item())
    return losses


@pytest.mark.parametrize("parts", [2, 3, 6])
def test_gradients_in_parts_are_those_of_the_whole_batch(parts: int) -> None:
    whole, split = (Stepper(small_model().double(), replace(CONFIG, accumulate=k)) for k in (1, parts))
    for stepper in (whole, split):
        stepper.update(uneven_batch(), step=0)
    expected, found = gradients(whole.model), gradients(split.model)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        # float64 rounds at 1e-16; some hundred terms near 1 are added in another order.
        torch.testing.assert_close(found[name], value, atol=1e-13, rtol=1e-12)
    torch.testing.assert_close(split.loss, whole.loss, atol=1e-13, rtol=0)
    torch.testing.assert_close(split.norm, whole.norm, atol=1e-13, rtol=0)


def test_the_loss_is_the_mean_over_scored_tokens() -> None:
    model, batch = small_model().double(), uneven_batch()
    log_probabilities = model(**batch.inputs).log_softmax(-1)
    scored = [(row, place) for row in range(6) for place in range(7) if batch.targets[row, place] != IGNORED]
    assert len(scored) == 4 * 7 + 1
    terms = [-log_probabilities[row, place, batch.targets[row, place]] for row, place in scored]
    stepper = Stepper(model, CONFIG)
    stepper.update(batch, step=0)
    assert stepper.loss.item() == pytest.approx(torch.stack(terms).mean().item(), abs=1e-13)


def test_the_gradient_is_clipped_and_its_norm_is_that_before() -> None:
    free, clipped = Stepper(small_model().double(), CONFIG), Stepper(small_model().double(), replace(CONFIG, clip=0.01))
    for stepper in (free, clipped):
        stepper.update(uneven_batch(), step=0)
    assert clipped.norm.item() == pytest.approx(free.norm.item(), abs=1e-13)
    left = torch.stack([g.norm() for g in gradients(clipped.model).values()]).norm()
    assert left.item() == pytest.approx(0.01, rel=1e-3)


def test_bf16_keeps_float32_weights_and_stays_near_float32() -> None:
    exact, rough = (Stepper(small_model(), replace(CONFIG, precision=name)) for name in ("float32", "bf16"))
    expected, found = losses_of(exact), losses_of(rough)
    assert found != expected
    # bfloat16 has 8 bits: a relative error of 2^-8 in each of a few layers' outputs, on a loss of about ln 11.
    assert found == pytest.approx(expected, rel=8 * 2**-8)
    assert {parameter.dtype for parameter in rough.model.parameters()} == {torch.float32}
    assert rough.loss.dtype == torch.float32


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_the_precision_of_matrix_products_is_restored(precision: str) -> None:
    seen, before = [], torch.get_float32_matmul_precision()
    model = small_model()
    model.head.register_forward_hook(lambda *_: seen.append(torch.get_float32_matmul_precision()))
    Stepper(model, replace(CONFIG, precision=precision)).update(uneven_batch(), step=0)
    assert seen == ["highest" if precision == "float32" else "high"]
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="no C++ compiler")
@pytest.mark.skipif(sys.platform == "win32", reason="Inductor's CPU code is built with g++ or clang++")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_step_gives_the_same_losses() -> None:
    plain, compiled = (Stepper(small_model(), replace(CONFIG, acceleration=name)) for name in ("none", "compile"))
    assert compiled.acceleration == "compile"
    # float32 rounds at 6e-8; AdamW's first steps have the size of the learning rate whatever the gradient's.
    assert losses_of(compiled, steps=4) == pytest.approx(losses_of(plain, steps=4), abs=1e-4)


@pytest.mark.parametrize("scheme", ["content", "rope"])
def test_a_restart_equals_a_fresh_stepper_bit_for_bit(scheme: str) -> None:
    used = Stepper(small_model(scheme, seed=1, dropout=0.2), CONFIG)
    losses_of(used)
    used.restart(7, small_model(scheme, seed=2).state_dict())
    fresh = Stepper(small_model(scheme, seed=2, dropout=0.2), replace(CONFIG, seed=7))
    assert losses_of(used) == losses_of(fresh)
    for name, value in fresh.model.state_dict().items():
        assert torch.equal(used.model.state_dict()[name], value), name


def test_packed_and_unpacked_goes_on_bit_for_bit() -> None:
    first = Stepper(small_model(dropout=0.2), CONFIG)
    losses_of(first, steps=3)
    other = Stepper(small_model(seed=5, dropout=0.2), CONFIG)
    other.unpack(first.pack())
    for stepper in (first, other):
        stepper.update(uneven_batch(3), step=3)
    assert first.loss.item() == other.loss.item()
    for name, value in first.pack().items():
        assert torch.equal(other.pack()[name], value), name


def test_graphs_need_a_gpu_and_auto_does_without_on_the_cpu() -> None:
    with pytest.raises(InputError, match="'graphs' needs a CUDA device, the model is on cpu"):
        Stepper(small_model(), replace(CONFIG, acceleration="graphs"))
    assert Stepper(small_model(), CONFIG).acceleration == "none"


# --- weights of targets --------------------------------------------------------------------------------------------


def weighted(weights: Tensor) -> dict[str, Tensor]:
    model = small_model()
    batch = WINDOWS.at(0, CONFIG.batch_size, CONFIG.seed)
    Stepper(model, replace(CONFIG, clip=1e9))._backward(Batch(batch.inputs, batch.targets, weights))
    return gradients(model)


def test_a_target_of_weight_zero_is_one_that_is_ignored() -> None:
    batch = uneven_batch()
    model = small_model()
    Stepper(model, replace(CONFIG, clip=1e9))._backward(batch)
    counted = (batch.targets != IGNORED).float()
    for name, gradient in weighted(counted).items():
        torch.testing.assert_close(gradient, gradients(model)[name])
    ones = weighted(torch.ones_like(counted))
    assert any(not torch.allclose(ones[name], gradient) for name, gradient in gradients(model).items())


def test_only_the_proportion_of_weights_counts() -> None:
    weights = torch.rand(uneven_batch().targets.shape, generator=torch.Generator().manual_seed(0))
    for name, gradient in weighted(weights).items():
        torch.testing.assert_close(weighted(7.0 * weights)[name], gradient)


def test_weights_go_with_their_rows() -> None:
    batch = WINDOWS.at(0, 4, 0)
    weights = torch.arange(float(batch.targets.numel())).view_as(batch.targets)
    whole = Batch(batch.inputs, batch.targets, weights)
    assert torch.equal(torch.cat([part.weights for part in whole.parts(2)]), weights)
    joined = Batch.joined([whole, batch])
    assert torch.equal(joined.weights, torch.cat([weights, torch.ones_like(weights)]))
    assert Batch.joined([batch, batch]).weights is None
    static = Batch(batch.inputs, batch.targets, torch.zeros_like(weights))
    static.copy_from(whole)
    assert torch.equal(static.weights, weights)
