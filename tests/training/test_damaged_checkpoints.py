"""A checkpoint that is not as it was written is refused and named; training goes on from the one before if told to."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from contentrope.errors import CheckpointError
from contentrope.training import Stepper, TrainConfig, Windows, train
from contentrope.training import checkpoint as checkpoints

CONFIG = TrainConfig(steps=6, batch_size=3, learning_rate=1e-2)
DATA = Windows(torch.arange(400) * 7919 % 11, length=7)
TENSORS, STATE = "tensors.safetensors", "state.json"


class Small(nn.Module):
    """A buffer, and one parameter that never gets a gradient."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.embedding, self.head = nn.Embedding(11, 2), nn.Linear(2, 11)
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, ids: Tensor) -> Tensor:
        self.calls += 1
        return self.head(self.embedding(ids))


def run(folder: Path, **changes: Any) -> Small:
    model = Small()
    train(Stepper(model, replace(CONFIG, **changes)), DATA, checkpoint=folder, save_every=3)
    return model


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "checkpoint"
    run(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "checkpoint"))


def require_refused(folder: Path, *said: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        run(folder)
    for words in ("step-00000006", *said):
        assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def reseal(place: Path, change: Callable[[dict[str, Any]], None] = lambda state: None) -> None:
    """Checksums as they would be, had this been written; what is left to find it out is what the fields say."""
    state = json.loads((place / STATE).read_bytes())
    state["tensors"]["bytes"] = (place / TENSORS).stat().st_size
    state["tensors"]["sha256"] = hashlib.sha256((place / TENSORS).read_bytes()).hexdigest()
    change(state)
    state.pop("sha256")
    (place / STATE).write_bytes(checkpoints._encoded(state))


# --- every byte ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flip", [0x01, 0x20, 0xFF])
@pytest.mark.parametrize("name", [TENSORS, STATE])
def test_any_flipped_byte_is_found(folder: Path, name: str, flip: int) -> None:
    file = folder / "step-00000006" / name
    whole = file.read_bytes()
    for place in range(0, len(whole), 3):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :])
        with pytest.raises(CheckpointError, match="step-00000006 is damaged"):
            checkpoints.latest(folder)
    file.write_bytes(whole)
    assert checkpoints.latest(folder) is not None


@pytest.mark.parametrize("name", [TENSORS, STATE])
def test_a_half_that_is_zero_or_gone_is_found(folder: Path, name: str) -> None:
    file = folder / "step-00000006" / name
    whole = file.read_bytes()
    half = len(whole) // 2
    for damaged in (
        whole[:half] + bytes(len(whole) - half),
        bytes(half) + whole[half:],
        whole[:half],
        b"",
        whole + b" ",
    ):
        file.write_bytes(damaged)
        require_refused(folder, name)
    file.unlink()
    require_refused(folder, name)


def test_one_state_is_not_put_beside_anothers_tensors(folder: Path) -> None:
    shutil.copy(folder / "step-00000003" / TENSORS, folder / "step-00000006" / TENSORS)
    require_refused(folder, TENSORS)


def test_a_step_folder_under_another_name_is_found(folder: Path) -> None:
    shutil.move(folder / "step-00000006", folder / "step-00000005")
    with pytest.raises(CheckpointError, match=r"step-00000005 is damaged.*is 6"):
        run(folder)


# --- the one before ------------------------------------------------------------------------------------------------


def test_deleting_the_damaged_one_continues_from_the_one_before(folder: Path, saved: Path) -> None:
    (folder / "step-00000006" / TENSORS).write_bytes(b"")
    require_refused(folder, "continue from step 3")
    shutil.rmtree(folder / "step-00000006")
    resumed = run(folder).state_dict()
    assert all(torch.equal(value, resumed[name]) for name, value in run(saved).state_dict().items())
    shutil.rmtree(folder / "step-00000003")
    (folder / "step-00000006" / TENSORS).write_bytes(b"")
    require_refused(folder, "start over")


def test_what_is_no_checkpoint_of_ours_is_never_deleted(folder: Path) -> None:
    theirs = folder / "step-00000001"
    theirs.mkdir()
    (theirs / "weights.bin").write_bytes(b"precious")
    (folder / "step-00000003" / "notes.txt").write_text("mine")
    (folder / "step-best").mkdir()
    shutil.rmtree(folder / "step-00000006")
    run(folder)
    checkpoints.drop(folder)
    assert (theirs / "weights.bin").read_bytes() == b"precious"
    assert (folder / "step-00000003" / "notes.txt").read_text() == "mine"
    assert {path.name for path in folder.iterdir()} == {"step-00000001", "step-00000003", "step-best"}


def test_nothing_is_left_of_checkpoints_that_are_dropped(folder: Path) -> None:
    (folder / ".writing").mkdir()
    (folder / ".writing" / TENSORS).write_bytes(b"half")
    checkpoints.drop(folder)
    assert not folder.exists()


# --- every field ---------------------------------------------------------------------------------------------------

WRONG: dict[str, list[Any]] = {
    "step": [0, -1, 5, 7, 6.0, "6", None, True],
    "loss": ["low", None, [2.0], True],
    "norm": [-1.0, "x", None],
    "tokens_per_step": [0, 1.5, None],
    "seconds": [-1, "long", None],
    "settings": [[], None, "none"],
    "tensors": [{}, None, 3],
    "format": [1, None, "2"],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in WRONG.items() for value in values])
def test_a_field_that_cannot_be_is_named(folder: Path, field: str, value: Any) -> None:
    reseal(folder / "step-00000006", lambda state: state.update({field: value}))
    require_refused(folder, field)


@pytest.mark.parametrize("field", WRONG)
def test_a_field_that_is_missing_is_named(folder: Path, field: str) -> None:
    reseal(folder / "step-00000006", lambda state: state.pop(field))
    require_refused(folder, field)


def test_a_step_beyond_the_last_is_refused(folder: Path) -> None:
    place = Path(shutil.move(folder / "step-00000006", folder / "step-00000009"))
    reseal(place, lambda state: state.update(step=9))
    with pytest.raises(CheckpointError, match="step-00000009"):
        run(folder)


# --- every tensor --------------------------------------------------------------------------------------------------


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    place = folder / "step-00000006"
    tensors = load_file(place / TENSORS)
    change(tensors)
    save_file(tensors, place / TENSORS)
    reseal(place)


NAMES = [f"model.{name}" for name, _ in Small().state_dict().items()] + [
    f"optimizer.{name}.{moment}"
    for name in ("embedding.weight", "head.weight", "head.bias")
    for moment in ("exp_avg", "exp_avg_sq", "step")
]


def test_these_are_all_tensors(saved: Path) -> None:
    assert sorted(NAMES) == sorted(load_file(saved / "step-00000006" / TENSORS))


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_tensor_is_named(folder: Path, name: str) -> None:
    change_tensors(folder, lambda tensors: tensors.pop(name))
    require_refused(folder, name)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int64])
@pytest.mark.parametrize("name", NAMES)
def test_a_cast_tensor_is_named(folder: Path, name: str, dtype: torch.dtype) -> None:
    change_tensors(folder, lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    require_refused(folder, name)


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_of_another_shape_is_named(folder: Path, name: str) -> None:
    change_tensors(folder, lambda tensors: tensors.update({name: tensors[name][None].clone()}))
    require_refused(folder, name)


@pytest.mark.parametrize("name", ["model.more", "optimizer.head.weight.more", "optimizer.more.step", "else"])
def test_a_tensor_too_many_is_named(folder: Path, name: str) -> None:
    change_tensors(folder, lambda tensors: tensors.update({name: torch.ones(())}))
    require_refused(folder, name)


@pytest.mark.parametrize("count", [0.0, 7.0, 2.5, -1.0, float("nan")])
def test_a_count_of_updates_that_cannot_be_is_named(folder: Path, count: float) -> None:
    change_tensors(folder, lambda tensors: tensors.update({"optimizer.head.bias.step": torch.tensor(count)}))
    require_refused(folder, "optimizer.head.bias.step")


def test_a_refused_checkpoint_leaves_the_model_as_it_was(folder: Path) -> None:
    change_tensors(folder, lambda tensors: tensors.pop("optimizer.head.bias.exp_avg"))
    stepper = Stepper(Small(), CONFIG)
    before = {name: value.clone() for name, value in stepper.model.state_dict().items()}
    with pytest.raises(CheckpointError):
        train(stepper, DATA, checkpoint=folder)
    assert all(torch.equal(value, before[name]) for name, value in stepper.model.state_dict().items())
