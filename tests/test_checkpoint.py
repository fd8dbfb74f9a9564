"""Saved models come back to the bit, under the settings they were saved with, or not at all."""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import contentrope as cr
from contentrope import schemes
from contentrope.sealed import sealed, unseal
from tests.support import lively_model, random_ids

WEIGHTS, SETTINGS = "model.safetensors", "config.json"
OPTIONS: dict[str, dict[str, Any]] = {
    "content": {"competition": 0.5, "learn_competition": True},
    "local": {"competition": 1},
    "alibi": {"slopes": (0.3, 0.007)},
    "yarn": {"factor": 4.0, "train_length": 64},
    "randomized": {"range": 999},
}


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()


def weights_of(model: cr.Transformer) -> dict[str, tuple[torch.dtype, bytes]]:
    return {name: (tensor.dtype, bits(tensor)) for name, tensor in model.state_dict().items()}


def saved(tmp_path: Path, **model_settings: Any) -> tuple[cr.Transformer, Path]:
    model = lively_model(model_settings.pop("scheme", "content"), **model_settings)
    cr.save(model, tmp_path / "model")
    return model, tmp_path / "model"


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- round trips -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", schemes.names())
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_model_comes_back_to_the_bit(tmp_path: Path, scheme: str, dtype: torch.dtype) -> None:
    model, folder = saved(tmp_path, scheme=scheme, dtype=dtype, options=OPTIONS.get(scheme, {}))
    loaded = cr.load(folder).eval()
    assert loaded.config == model.config
    assert weights_of(loaded) == weights_of(model)
    torch.manual_seed(0)
    expected = model(random_ids(2, 20))
    torch.manual_seed(0)
    assert torch.equal(loaded(random_ids(2, 20)), expected)


def test_all_settings_come_back(tmp_path: Path) -> None:
    rotary = cr.RotaryConfig(base=500.0, pairs="interleaved", frequencies="model_wide", fraction=0.5)
    own = {"terminators": (0, 3), "reader": (10,), "max_unit_length": 9, "dropout": 0.1, "heads": 4, "kv_heads": 2}
    options = {"competition": 1.5, "learn_competition": False}
    model, folder = saved(tmp_path, dim=32, options=options, rotary=rotary, **own)
    loaded = cr.load(folder)
    assert loaded.config == model.config
    assert loaded.config.options == options
    assert loaded.scheme.reader.competition.of(0) == 1.5


def test_numbers_of_every_kind_come_back(tmp_path: Path) -> None:
    model = lively_model("rope", dtype=torch.bfloat16)
    with torch.no_grad():
        odd = [torch.inf, -torch.inf, torch.nan, -0.0, 1e-40, 3.3895e38]
        model.head.bias[: len(odd)] = torch.tensor(odd)
    cr.save(model, tmp_path)
    assert weights_of(cr.load(tmp_path)) == weights_of(model)


def test_tensors_of_different_dtypes_keep_theirs(tmp_path: Path) -> None:
    model = lively_model("content", dtype=torch.bfloat16)
    model.norm.float()
    with torch.no_grad():
        model.norm.weight.add_(1e-5)
    cr.save(model, tmp_path)
    assert weights_of(cr.load(tmp_path)) == weights_of(model)
    into = lively_model("content", seed=1)
    cr.load_into(into, tmp_path)
    assert weights_of(into) == weights_of(model)


def test_an_existing_model_is_filled_in_place(tmp_path: Path) -> None:
    """An optimizer made before still holds the parameters that are trained after."""
    model, folder = saved(tmp_path)
    other = lively_model("content", seed=1)
    before = dict(other.named_parameters())
    cr.load_into(other, folder)
    assert weights_of(other) == weights_of(model)
    assert all(parameter is before[name] for name, parameter in other.named_parameters())
    assert all(parameter.requires_grad for parameter in other.parameters())


def test_a_loaded_model_does_not_hold_on_to_the_file(tmp_path: Path) -> None:
    model, folder = saved(tmp_path)
    loaded = cr.load(folder)
    (folder / WEIGHTS).write_bytes(b"\0" * (folder / WEIGHTS).stat().st_size)
    assert weights_of(loaded) == weights_of(model)


def test_the_folder_holds_two_files_and_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, folder = saved(tmp_path)
    found = files_in(folder)
    assert set(found) == {WEIGHTS, SETTINGS}
    json.loads(found[SETTINGS])
    header_length = struct.unpack("<Q", found[WEIGHTS][:8])[0]
    json.loads(found[WEIGHTS][8 : 8 + header_length])

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a pickle was read")

    for owner, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(owner, name, refuse)
    cr.load(folder)


def test_files_can_be_read_by_others(tmp_path: Path) -> None:
    _, folder = saved(tmp_path)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}


# --- other settings --------------------------------------------------------------------------------------------


def test_a_model_with_other_settings_is_not_filled(tmp_path: Path) -> None:
    _, folder = saved(tmp_path, options={"competition": 1.0}, rotary=cr.RotaryConfig(base=500.0))
    other = lively_model("content", max_unit_length=8)
    before = weights_of(other)
    with pytest.raises(cr.CheckpointError) as caught:
        cr.load_into(other, folder)
    for named in (
        "max_unit_length: 8 here, 7 in the file",
        "options.competition: None here, 1.0 in the file",
        "rotary.base: 10000.0 here, 500.0 in the file",
    ):
        assert named in str(caught.value)
    assert "dropout" not in str(caught.value)
    assert weights_of(other) == before


def edit_settings(folder: Path, **changes: Any) -> None:
    written = json.loads((folder / SETTINGS).read_text())
    written["model"].update(changes)
    (folder / SETTINGS).write_text(json.dumps(written))


def test_an_edited_config_is_refused(tmp_path: Path) -> None:
    _, folder = saved(tmp_path)
    edit_settings(folder, dropout=0.5, terminators=[0, 1])
    message = r"config.json is not what the weights were saved with: .*model.dropout: 0.0 here, 0.5 in the file"
    with pytest.raises(cr.CheckpointError, match=message):
        cr.load(folder)
    with pytest.raises(cr.CheckpointError, match=r"model.terminators: \[0\] here, \[0, 1\] in the file"):
        cr.load_into(lively_model("content"), folder)


def test_the_weights_carry_their_settings_without_the_json(tmp_path: Path) -> None:
    model, folder = saved(tmp_path)
    (folder / SETTINGS).unlink()
    assert weights_of(cr.load(folder)) == weights_of(model)


@pytest.mark.parametrize("content", [b'{"format": 1', b"\xff\xfe\x00", b"[1, 2]", b"null"])
def test_a_damaged_config_is_named_with_the_remedy(tmp_path: Path, content: bytes) -> None:
    _, folder = saved(tmp_path)
    (folder / SETTINGS).write_bytes(content)
    with pytest.raises(cr.CheckpointError, match=r"config.json is damaged .*delete it to load from model.safetensors"):
        cr.load(folder)


# --- damaged weights -------------------------------------------------------------------------------------------


def rewritten(folder: Path, change: Any = None, *, header: Any = None) -> None:
    """Write the weights again with other tensors or another header, and the checksum of these."""
    carried, tensors, _ = unseal(folder / WEIGHTS)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    if change:
        change(tensors)
    if header:
        carried = header(carried)
    (folder / WEIGHTS).write_bytes(sealed(carried, tensors))


def assert_refused(folder: Path, message: str) -> None:
    """Neither a new model nor an existing one is made from it, and the existing one keeps every bit."""
    with pytest.raises(cr.CheckpointError, match=message):
        cr.load(folder)
    model = lively_model("content", seed=1, dtype=torch.float32)
    before = weights_of(model)
    with pytest.raises(cr.CheckpointError, match=message):
        cr.load_into(model, folder)
    assert weights_of(model) == before


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    _, folder = saved(tmp_path)
    rewritten(folder, lambda tensors: (tensors.pop("norm.weight"), tensors.pop("head.bias")))
    named = r"2 tensors: head.bias \(\(11,\) here, None in the file\), norm.weight \(\(24,\) here, None in the file\)"
    assert_refused(folder, named)


def test_tensors_too_many_or_of_another_shape_are_named(tmp_path: Path) -> None:
    _, folder = saved(tmp_path)
    rewritten(folder, lambda tensors: tensors.update({"extra": torch.zeros(3), "head.bias": torch.zeros(12)}))
    assert_refused(folder, r"extra \(None here, \(3,\) in the file\), head.bias \(\(11,\) here, \(12,\) in the file\)")


def test_whole_numbers_are_no_weights(tmp_path: Path) -> None:
    _, folder = saved(tmp_path)
    rewritten(folder, lambda tensors: tensors.update({"head.bias": torch.zeros(11, dtype=torch.int32)}))
    assert_refused(folder, "damaged .*head.bias has dtype torch.int32")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (lambda carried: {**carried, "format": 3}, "has format 3, this version reads 1, 2"),
        (lambda carried: {}, "has format None, this version reads 1, 2"),
        (lambda carried: [carried], "has format None, this version reads 1, 2"),
    ],
    ids=["newer", "foreign", "odd"],
)
def test_another_format_is_refused(tmp_path: Path, header: Any, message: str) -> None:
    _, folder = saved(tmp_path)
    rewritten(folder, header=header)
    assert_refused(folder, message)


def test_settings_this_version_does_not_know_are_refused(tmp_path: Path) -> None:
    _, folder = saved(tmp_path)
    (folder / SETTINGS).unlink()
    rewritten(folder, header=lambda carried: {**carried, "model": {**carried["model"], "width": 3}})
    with pytest.raises(cr.CheckpointError, match=r"model.safetensors .*unknown model setting width"):
        cr.load(folder)
    rewritten(folder, header=lambda carried: {"format": 1, "model": {"dim": 24}})
    with pytest.raises(cr.CheckpointError, match=r"model.safetensors .*missing .*vocab_size"):
        cr.load(folder)


ODD: list[Any] = [None, 7, -1.5, True, "x", [], [[]], {}, {"a": []}, 1e400, 10**30]


@pytest.mark.parametrize("value", ODD, ids=str)
def test_settings_of_a_wrong_kind_are_refused(tmp_path: Path, value: Any) -> None:
    """Or make the very model that was saved."""
    model, folder = saved(tmp_path)
    (folder / SETTINGS).unlink()
    names = [*model.config.to_dict()]
    places = [lambda c: {**c, "model": value}, lambda c: {"format": 1}]
    places += [lambda c, name=name: {**c, "model": {**c["model"], name: value}} for name in names]
    for place in [*places, lambda c: {**c, "model": {**c["model"], "rotary": {"base": value}}}]:
        whole = unseal(folder / WEIGHTS).settings
        rewritten(folder, header=place)
        try:
            assert weights_of(cr.load(folder)) == weights_of(model)
            cr.load_into(lively_model("content"), folder)
        except cr.CheckpointError as error:
            assert str(folder) in str(error)  # noqa: PT017
        rewritten(folder, header=lambda _, whole=whole: whole)


def test_settings_nested_deep_are_refused(tmp_path: Path) -> None:
    _, folder = saved(tmp_path)
    deep = "[" * 100_000 + "]" * 100_000
    (folder / SETTINGS).write_text(deep)
    assert_refused(folder, "config.json is damaged")
    (folder / SETTINGS).unlink()
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, folder / WEIGHTS, metadata={"contentrope": deep})
    assert_refused(folder, "model.safetensors is damaged")


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(cr.CheckpointError, match=re.escape(f"no {WEIGHTS} in {tmp_path}: not a saved model")):
        cr.load(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.01, 0.1, 0.5, 0.99, 0.99999])
def test_truncated_weights_are_refused(tmp_path: Path, share: float) -> None:
    _, folder = saved(tmp_path)
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[: int(share * len(whole))])
    assert_refused(folder, r"model.safetensors is damaged \(.*\); restore it from a copy")


def test_weights_that_are_something_else_are_refused(tmp_path: Path) -> None:
    _, folder = saved(tmp_path)
    torch.save({"a": torch.zeros(3)}, folder / WEIGHTS)
    assert_refused(folder, "model.safetensors is damaged")


@pytest.fixture(scope="module")
def whole_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, dict[str, Any]]:
    model = lively_model("content", layers=1, dim=8)
    folder = tmp_path_factory.mktemp("whole")
    cr.save(model, folder)
    return folder, (folder / WEIGHTS).read_bytes(), weights_of(model)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(data=st.data())
def test_a_byte_changed_in_the_header_is_refused_or_does_no_harm(
    whole_checkpoint: tuple[Path, bytes, dict[str, Any]], data: st.DataObject
) -> None:
    folder, whole, expected = whole_checkpoint
    header_length = struct.unpack("<Q", whole[:8])[0]
    place = data.draw(st.integers(0, 8 + header_length - 1))
    byte = data.draw(st.integers(0, 255))
    (folder / WEIGHTS).write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])
    try:
        loaded = cr.load(folder)
    except cr.CheckpointError:
        return
    assert weights_of(loaded) == expected


# --- writing that fails ----------------------------------------------------------------------------------------


def fail_at_call(monkeypatch: pytest.MonkeyPatch, function: str, call: int) -> None:
    original, calls = getattr(os, function), []

    def failing(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == call:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(*arguments, **options)

    monkeypatch.setattr(os, function, failing)


@pytest.mark.parametrize("function", ["fdopen", "fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    _, folder = saved(tmp_path)
    before = files_in(folder)
    with monkeypatch.context() as patched:
        fail_at_call(patched, function, call=1)
        with pytest.raises(OSError, match="No space left"):
            cr.save(lively_model("content", seed=1), folder)
    assert files_in(folder) == before


def test_a_disk_that_fills_up_while_writing_leaves_the_old_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = saved(tmp_path)
    before, fdopen = files_in(folder), os.fdopen

    def small_disk(*arguments: Any) -> Any:
        file = fdopen(*arguments)

        class Full:
            def __enter__(self) -> Full:
                return self

            def __exit__(self, *_: Any) -> None:
                file.close()

            def write(self, data: bytes) -> None:
                file.write(data[: len(data) // 2])
                raise OSError(errno.ENOSPC, "No space left on device")

        return Full()

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdopen", small_disk)
        with pytest.raises(OSError, match="No space left"):
            cr.save(lively_model("content", seed=1), folder)
    assert files_in(folder) == before


@pytest.mark.parametrize("call", [1, 2], ids=["weights", "settings"])
@pytest.mark.parametrize("new_settings", [{"seed": 1}, {"scheme": "rope"}], ids=["same settings", "other settings"])
def test_after_a_failed_write_the_old_or_the_new_model_is_there_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int, new_settings: dict[str, Any]
) -> None:
    old, folder = saved(tmp_path)
    new = lively_model(**{"scheme": "content", **new_settings})
    with monkeypatch.context() as patched:
        fail_at_call(patched, "replace", call)
        with pytest.raises(OSError, match="No space left"):
            cr.save(new, folder)
    assert weights_of(cr.load(folder)) == weights_of(old if call == 1 else new)
    assert set(files_in(folder)) <= {WEIGHTS, SETTINGS}


def test_saving_again_replaces_both_files(tmp_path: Path) -> None:
    _, folder = saved(tmp_path)
    new = lively_model("rope", seed=1)
    cr.save(new, folder)
    assert weights_of(cr.load(folder)) == weights_of(new)
    assert json.loads((folder / SETTINGS).read_text())["model"]["scheme"] == "rope"


# --- a checksum over weights and settings ---


@pytest.mark.parametrize("bit", range(8))
def test_a_changed_bit_anywhere_is_noticed(tmp_path: Path, bit: int) -> None:
    """In the header a bit may be one of white space, or of a name nobody asks for: then the model is the same."""
    model, folder = saved(tmp_path)
    whole, wanted = (folder / WEIGHTS).read_bytes(), weights_of(model)
    length = struct.unpack("<Q", whole[:8])[0]
    for at in [*range(8, 8 + length, 97), *range(8 + length, len(whole), 397)]:
        (folder / WEIGHTS).write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
        try:
            assert weights_of(cr.load(folder)) == wanted, f"byte {at}"
            assert at < 8 + length, f"byte {at} of the weights"
        except cr.CheckpointError as error:
            assert str(folder) in str(error)  # noqa: PT017


def test_a_file_of_the_first_format_has_no_checksum_and_opens(tmp_path: Path) -> None:
    model, folder = saved(tmp_path)
    carried, tensors, _ = unseal(folder / WEIGHTS)
    old = {**carried, "format": 1}
    (folder / SETTINGS).unlink()
    save_file(dict(tensors), folder / "old", metadata={"contentrope": json.dumps(old)})
    os.replace(folder / "old", folder / WEIGHTS)
    assert weights_of(cr.load(folder)) == weights_of(model)
    save_file(dict(tensors), folder / "old", metadata={"contentrope": json.dumps(carried)})
    os.replace(folder / "old", folder / WEIGHTS)
    assert_refused(folder, "its checksum is gone")
