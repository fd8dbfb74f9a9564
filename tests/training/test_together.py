"""Several seeds in one update give what each gives alone."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from contentrope.errors import InputError
from contentrope.model import Transformer
from contentrope.stacked import can_be_stacked, stack
from contentrope.training import Batch, Stepper, TrainConfig, Windows, read_metrics, train, train_together
from contentrope.training.together import BatchesTogether, TogetherStepper, beside, shared_checkpoint
from tests.support import lively_model, random_ids

SCHEMES = ["content", "local", "rope", "alibi", "bipe"]


def models_of(scheme: str, count: int, dtype: torch.dtype = torch.float64) -> list[Transformer]:
    models = []
    for seed in range(count):
        torch.manual_seed(seed)
        models.append(lively_model(scheme, dtype=dtype))
    return models


def differ(models: list[Transformer]) -> bool:
    first, second = (next(m.parameters()) for m in models[:2])
    return not torch.equal(first, second)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_stack_computes_what_its_models_compute(scheme: str) -> None:
    models = models_of(scheme, 3)
    for index, model in enumerate(models):  # lively models of one seed may be alike
        for parameter in model.parameters():
            parameter.data += 0.01 * index * torch.randn_like(parameter)
    assert differ(models)
    ids = random_ids(6, 40)
    apart = torch.cat([model(rows) for model, rows in zip(models, ids.chunk(3), strict=True)])
    torch.testing.assert_close(stack(models)(ids), apart, rtol=0, atol=1e-12)


def test_weights_that_belong_to_no_known_layer_are_refused() -> None:
    models = models_of("cope", 2)
    assert not can_be_stacked(models[0])
    assert can_be_stacked(models_of("content", 1)[0])
    with pytest.raises(InputError, match="one after the other"):
        stack(models)


def test_the_models_keep_their_own_weights() -> None:
    models = models_of("content", 2)
    before = models[0].embedding.weight.clone()
    together = stack(models)
    torch.nn.init.zeros_(together.embedding.weight)
    assert torch.equal(models[0].embedding.weight, before)


CONFIG = TrainConfig(steps=12, batch_size=4, learning_rate=3e-3, warmup=3, clip=0.2)
"""Clipped so hard that it matters whose norm it is."""


def text(size: int = 400) -> Windows:
    return Windows(random_ids(1, size)[0], length=24)


def alone(model: Transformer, seed: int, folder: Path | None = None) -> list[torch.Tensor]:
    train(Stepper(model, replace(CONFIG, seed=seed)), text(), checkpoint=folder)
    return [p.detach().clone() for p in model.parameters()]


class Weighing:
    """Batches whose targets count differently, and not alike for all seeds."""

    def at(self, step: int, rows: int, seed: int) -> Batch:
        batch = text().at(step, rows, seed)
        generator = torch.Generator().manual_seed(seed)
        return replace(batch, weights=torch.rand(batch.targets.shape, generator=generator))


def test_each_model_has_the_weights_of_its_own_targets(tmp_path: Path) -> None:
    apart = []
    for seed, model in enumerate(models_of("content", 2)):
        train(Stepper(model, replace(CONFIG, seed=seed)), Weighing())
        apart.append(list(model.parameters()))
    models = models_of("content", 2)
    stepper = TogetherStepper(models, CONFIG)
    train(stepper, BatchesTogether(Weighing(), [0, 1]))
    for weight, *each in zip(stepper.model.parameters(), *apart, strict=True):
        torch.testing.assert_close(weight, torch.stack(each), rtol=0, atol=1e-8)
    unweighted = alone(models_of("content", 2)[0], 0)
    assert any(not torch.allclose(a, b) for a, b in zip(unweighted, apart[0], strict=True))


@pytest.mark.parametrize("scheme", ["content", "rope"])
def test_training_together_is_training_apart(scheme: str, tmp_path: Path) -> None:
    apart = [alone(model, seed) for seed, model in enumerate(models_of(scheme, 2))]
    models = models_of(scheme, 2)
    folders = {seed: tmp_path / f"seed-{seed}" for seed in range(2)}
    train_together(dict(enumerate(models)), CONFIG, text(), folders, settings={"of": "test"})
    for seed, expected in enumerate(apart):
        found = models_of(scheme, 1)[0]
        stepper = Stepper(found, replace(CONFIG, seed=seed))
        report = train(stepper, text(), checkpoint=folders[seed] / "checkpoint", settings={"of": "test"})
        assert report.step == CONFIG.steps
        for ours, theirs in zip(found.parameters(), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
        assert beside(folders[seed]) == 2
        moments = stepper.optimizer.state[next(found.parameters())]["exp_avg"]
        assert moments.shape == next(found.parameters()).shape
    assert not shared_checkpoint(folders).exists()


def test_each_model_is_clipped_by_its_own_norm() -> None:
    stepper = TogetherStepper(models_of("rope", 2), replace(CONFIG, clip=1.0))
    weights = list(stepper.model.parameters())
    norms = torch.tensor([0.3, 5.0], dtype=torch.float64)  # one is short enough as it is
    before = [torch.randn_like(weight) for weight in weights]
    total = sum(grad.flatten(1).square().sum(1) for grad in before)
    assert isinstance(total, torch.Tensor)
    for weight, grad in zip(weights, before, strict=True):
        grad.mul_((norms / total.sqrt()).view(2, *(1 for _ in grad.shape[1:])))
        weight.grad = grad.clone()
    assert float(stepper._clipped()) == pytest.approx(5.0)
    for weight, grad in zip(weights, before, strict=True):
        assert weight.grad is not None
        assert torch.equal(weight.grad[0], grad[0])
        torch.testing.assert_close(weight.grad[1], grad[1] / 5.0, rtol=1e-6, atol=0)


def test_every_seed_has_metrics_of_its_own(tmp_path: Path) -> None:
    folders = {seed: tmp_path / f"seed-{seed}" for seed in (3, 5)}
    models = dict(zip(folders, models_of("rope", 2), strict=True))
    heard: list[tuple[int, int]] = []
    train_together(
        models, CONFIG, text(), folders, settings={}, on_step=lambda seed, report: heard.append((seed, report.step))
    )
    losses = [read_metrics(folder / "metrics.jsonl")[-1]["loss"] for folder in folders.values()]
    assert losses[0] != losses[1]
    assert heard[:2] == [(3, 1), (5, 1)]
    assert heard[-1] == (5, CONFIG.steps)


def test_stopped_training_goes_on_where_it_was(tmp_path: Path) -> None:
    def finished(folder: Path, stop_at: int | None) -> dict[str, torch.Tensor]:
        folders = {seed: folder / f"seed-{seed}" for seed in range(2)}

        def stop(seed: int, report: object) -> None:
            if seed == 1 and getattr(report, "step") == stop_at:  # noqa: B009
                raise KeyboardInterrupt

        for on_step in (stop, lambda seed, report: None):
            try:
                models = dict(enumerate(models_of("content", 2)))
                train_together(models, CONFIG, text(), folders, settings={}, on_step=on_step)
            except KeyboardInterrupt:
                assert shared_checkpoint(folders).exists()
        from safetensors.torch import load_file

        return load_file(folders[1] / "checkpoint" / "step-00000012" / "tensors.safetensors")

    whole, resumed = finished(tmp_path / "whole", None), finished(tmp_path / "resumed", 7)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_accumulation_is_refused() -> None:
    with pytest.raises(InputError, match="accumulate is 2"):
        TogetherStepper(models_of("rope", 2), replace(CONFIG, accumulate=2))


def test_a_run_killed_after_its_last_step_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {seed: tmp_path / f"seed-{seed}" for seed in range(2)}

    def power_cut(*_: object) -> None:
        raise RuntimeError("power cut")

    monkeypatch.setattr(TogetherStepper, "pack_one", power_cut)
    with pytest.raises(RuntimeError, match="power cut"):
        train_together(dict(enumerate(models_of("rope", 2))), CONFIG, text(), folders, settings={})
    monkeypatch.undo()
    train_together(dict(enumerate(models_of("rope", 2))), CONFIG, text(), folders, settings={})
    for folder in folders.values():
        assert [path.name for path in (folder / "checkpoint").iterdir()] == ["step-00000012"]
    assert not shared_checkpoint(folders).exists()
