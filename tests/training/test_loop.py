"""Stopping and resuming leaves no trace; what cannot be resumed is refused."""

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from contentrope import ModelConfig, Transformer
from contentrope.errors import CheckpointError, InputError
from contentrope.training import DivergedError, Stepper, StepReport, TrainConfig, Windows
from contentrope.training import train as train_stepper

CONFIG = TrainConfig(steps=12, batch_size=3, learning_rate=1e-2, warmup=2, seed=5)
DATA = Windows(torch.arange(400) * 7919 % 11, length=7)


def train(model: nn.Module, data: Windows, config: TrainConfig, **options: Any) -> StepReport:
    return train_stepper(Stepper(model, config), data, **options)


@pytest.fixture(autouse=True)
def ctrl_c_interrupts() -> Iterator[None]:
    """Python's own handler, also where the tests run in the background and the shell ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class TinyModel(nn.Module):
    """Dropout, a buffer, and one parameter that never gets a gradient."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, width)
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(width, 11)
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, ids: Tensor) -> Tensor:
        self.calls += 1
        return self.head(self.dropout(self.embedding(ids)))


def tiny_model(width: int = 6) -> TinyModel:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return TinyModel(width)


def interrupt_at(step: int):
    def on_step(report: StepReport) -> None:
        if report.step == step:
            raise KeyboardInterrupt

    return on_step


def assert_same_bits(one: nn.Module, other: nn.Module) -> None:
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def step_folders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_training_lowers_the_loss_and_does_not_touch_the_global_generator() -> None:
    before = torch.get_rng_state()
    losses: list[float] = []
    train(tiny_model(), DATA, replace(CONFIG, steps=150), on_step=lambda report: losses.append(report.loss))
    assert losses[-1] < losses[0] - 0.2
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("stop", [1, 4, 5, 11])
def test_an_interrupted_run_ends_with_the_bits_of_an_uninterrupted_one(tmp_path: Path, stop: int) -> None:
    whole, resumed = tiny_model(), tiny_model()
    expected = train(whole, DATA, CONFIG)
    with pytest.raises(KeyboardInterrupt):
        train(resumed, DATA, CONFIG, checkpoint=tmp_path, on_step=interrupt_at(stop), save_every=4)
    before = [f"step-{step:08d}" for step in (4, 8) if step < stop][-1:]
    assert step_folders(tmp_path) == [*before, f"step-{stop:08d}"]
    torch.rand(stop)  # the global generator is elsewhere after a restart
    resumed = TinyModel()  # other initial weights, which the checkpoint replaces
    report = train(resumed, DATA, CONFIG, checkpoint=tmp_path)
    assert_same_bits(whole, resumed)
    assert report.loss == expected.loss
    assert (report.step, report.steps) == (12, 12)


@pytest.mark.parametrize("scheme", ["content", "rope"])
def test_a_transformer_with_dropout_resumes_bit_for_bit(tmp_path: Path, scheme: str) -> None:
    settings = ModelConfig(vocab_size=11, dim=8, layers=2, heads=2, scheme=scheme, terminators=(0,), dropout=0.2)
    whole, stopped, resumed = Transformer(settings), Transformer(settings), Transformer(settings)
    stopped.load_state_dict(whole.state_dict())
    train(whole, DATA, CONFIG)
    with pytest.raises(KeyboardInterrupt):
        train(stopped, DATA, CONFIG, checkpoint=tmp_path, on_step=interrupt_at(5))
    train(resumed, DATA, CONFIG, checkpoint=tmp_path)
    assert_same_bits(whole, resumed)


def test_a_crash_falls_back_to_the_last_periodic_checkpoint(tmp_path: Path) -> None:
    def crash(report: StepReport) -> None:
        if report.step == 7:
            raise RuntimeError("power cut")

    whole, resumed = tiny_model(), tiny_model()
    train(whole, DATA, CONFIG)
    with pytest.raises(RuntimeError, match="power cut"):
        train(tiny_model(), DATA, CONFIG, checkpoint=tmp_path, on_step=crash, save_every=3)
    assert step_folders(tmp_path) == ["step-00000003", "step-00000006"]
    train(resumed, DATA, CONFIG, checkpoint=tmp_path)
    assert_same_bits(whole, resumed)


def test_a_finished_run_is_loaded_not_repeated(tmp_path: Path) -> None:
    whole, again = tiny_model(), tiny_model()
    train(whole, DATA, CONFIG, checkpoint=tmp_path)
    steps: list[int] = []
    train(again, DATA, CONFIG, checkpoint=tmp_path, on_step=lambda report: steps.append(report.step))
    assert steps == []
    assert_same_bits(whole, again)


def test_ctrl_c_in_the_middle_of_a_step_waits_for_its_end(tmp_path: Path) -> None:
    class PressesCtrlC(TinyModel):
        def forward(self, ids: Tensor) -> Tensor:
            if self.calls == 3:
                signal.raise_signal(signal.SIGINT)
            return super().forward(ids)

    steps: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        train(
            PressesCtrlC(),
            DATA,
            CONFIG,
            checkpoint=tmp_path,
            on_step=lambda report: steps.append(report.step),
        )
    assert steps == [1, 2, 3, 4]
    assert step_folders(tmp_path) == ["step-00000004"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_half_an_update_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, step = tiny_model(), torch.optim.AdamW.step

    def interrupted(self: torch.optim.AdamW) -> None:
        step(self)
        if model.calls == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(torch.optim.AdamW, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(model, DATA, CONFIG, checkpoint=tmp_path, save_every=4)
    assert step_folders(tmp_path) == ["step-00000004"]


def test_a_failing_save_keeps_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tiny_model(), DATA, CONFIG, checkpoint=tmp_path, on_step=interrupt_at(4))

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("contentrope.training.checkpoint.flush", fail)
    with pytest.raises(OSError, match="disk full"):
        train(tiny_model(), DATA, CONFIG, checkpoint=tmp_path)
    monkeypatch.undo()
    assert step_folders(tmp_path) == ["step-00000004"]
    whole, resumed = tiny_model(), tiny_model()
    train(whole, DATA, CONFIG)
    train(resumed, DATA, CONFIG, checkpoint=tmp_path)
    assert_same_bits(whole, resumed)
    assert step_folders(tmp_path) == ["step-00000004", "step-00000012"]


def test_two_checkpoints_are_kept_at_most(tmp_path: Path) -> None:
    seen: list[int] = []
    train(
        tiny_model(),
        DATA,
        CONFIG,
        checkpoint=tmp_path,
        save_every=1,
        on_step=lambda _: seen.append(len(step_folders(tmp_path))),
    )
    assert seen == [1] + [2] * 11


def test_a_checkpoint_of_other_settings_is_refused_by_name(tmp_path: Path) -> None:
    train(tiny_model(), DATA, CONFIG, checkpoint=tmp_path, settings={"corpus": "a"})
    other = replace(CONFIG, learning_rate=2e-2, seed=6)
    with pytest.raises(CheckpointError, match=r"corpus: 'b'.*train\.learning_rate: 0\.02.*train\.seed: 6"):
        train(tiny_model(), DATA, other, checkpoint=tmp_path, settings={"corpus": "b"})


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    train(tiny_model(), DATA, CONFIG, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match=r"another model.*embedding\.weight"):
        train(tiny_model(width=4), DATA, CONFIG, checkpoint=tmp_path)


@pytest.mark.parametrize("state", ["3", "{}"])
def test_a_foreign_state_is_named(tmp_path: Path, state: str) -> None:
    train(tiny_model(), DATA, CONFIG, checkpoint=tmp_path)
    (tmp_path / "step-00000012" / "state.json").write_text(state)
    with pytest.raises(CheckpointError, match=r"step-00000012 is damaged \(state\.json holds no settings\)"):
        train(tiny_model(), DATA, CONFIG, checkpoint=tmp_path)


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, name: str) -> None:
    train(tiny_model(), DATA, CONFIG, checkpoint=tmp_path)
    file = tmp_path / "step-00000012" / name
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(CheckpointError, match="step-00000012 is damaged"):
        train(tiny_model(), DATA, CONFIG, checkpoint=tmp_path)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_stops_before_the_update(tmp_path: Path, poison: float) -> None:
    class Diverges(TinyModel):
        def forward(self, ids: Tensor) -> Tensor:
            logits = super().forward(ids)
            return logits * poison if self.calls == 6 else logits

    model = Diverges()
    with pytest.raises(DivergedError, match=r"step 6: .*learning_rate below 0\.01"):
        train(model, DATA, CONFIG, checkpoint=tmp_path, save_every=2)
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    assert step_folders(tmp_path) == ["step-00000002", "step-00000004"]


def test_the_learning_rate_rises_linearly_then_falls() -> None:
    rates = [CONFIG.learning_rate_at(step) for step in range(CONFIG.steps)]
    assert rates[:3] == pytest.approx([0.005, 0.01, 0.01])
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert 0 < rates[-1] < 0.001


def test_the_learning_rate_may_stay_where_it_is() -> None:
    constant = replace(CONFIG, schedule="constant")
    rates = [constant.learning_rate_at(step) for step in range(CONFIG.steps)]
    assert rates[:2] == pytest.approx([0.005, 0.01])
    assert set(rates[2:]) == {CONFIG.learning_rate}


@pytest.mark.parametrize(
    ("field", "value"),
    [("steps", 0), ("batch_size", -1), ("accumulate", 2), ("precision", "fp8"), ("acceleration", "rocket"),
     ("learning_rate", 0.0), ("schedule", "linear"), ("clip", float("nan")), ("clip", 0.0),
     ("weight_decay", -0.1), ("warmup", 12), ("seed", -1), ("steps", True)],
)  # fmt: skip
def test_senseless_settings_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(InputError, match=field):
        replace(CONFIG, **{field: value})


def test_save_every_must_be_positive() -> None:
    with pytest.raises(InputError, match="save_every"):
        train(tiny_model(), DATA, CONFIG, save_every=0)
