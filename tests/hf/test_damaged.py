"""Damaged folders: one clear sentence, or the very model that was saved. Never a traceback, never another model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from contentrope.errors import CheckpointError, InputError
from contentrope.hf.layout import is_checkpoint, is_converted
from contentrope.hf.loading import load_any
from contentrope.hf.plain import config_of, load_model, require_embedded
from tests.experiments.retrofit.tiny import lively_reader, saved_original
from tests.hf.test_checkpoints import as_before, converted, logits, saved

DEEP = "[" * 100_000 + "]" * 100_000
CONTENTS: dict[str, Callable[[bytes], bytes]] = {
    "cut in half": lambda whole: whole[: len(whole) // 2],
    "cut by a byte": lambda whole: whole[:-2],
    "empty": lambda whole: b"",
    "zeros": lambda whole: bytes(len(whole)),
    "a list": lambda whole: b"[]",
    "no keys": lambda whole: b"{}",
    "a number": lambda whole: b"7",
    "nested deep": lambda whole: DEEP.encode(),
    "deep inside": lambda whole: f'{{"model_type": {DEEP}, "units": {DEEP}}}'.encode(),
    "not text": lambda whole: b"\xff\xfe{",
}
KINDS = ("plain", "all", "lora", "merged", "earlier all", "earlier lora")


def folder_with(kind: str, at: Path) -> Any:
    """What the model in a folder says, before anything in it is damaged."""
    if kind == "plain":
        saved_original(at)
        return logits(lively_reader().model)
    if kind.startswith("earlier"):
        model = converted(kind.split()[1], at)
        as_before(model, at)
        return logits(model)
    return saved(kind, at)


def is_the_same_or_refused(folder: Path, expected: Any) -> bool:
    """Refused, if not the same. What is no checkpoint any more is not taken for one by the commands either."""
    refused = ""
    try:
        found = load_any(str(folder))[0]
    except (CheckpointError, InputError) as error:
        refused = str(error)
    if not refused:
        assert torch.equal(logits(found), expected)
        return True
    assert "\n" not in refused
    assert str(folder) in refused
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    expected = folder_with(kind, tmp_path / "whole")
    assert is_the_same_or_refused(tmp_path / "whole", expected)
    refused = 0
    for file in sorted((tmp_path / "whole").iterdir()):
        for damage in ("gone", *CONTENTS):
            folder = tmp_path / "damaged"
            shutil.copytree(tmp_path / "whole", folder)
            if damage == "gone":
                (folder / file.name).unlink()
            else:
                (folder / file.name).write_bytes(CONTENTS[damage](file.read_bytes()))
            refused += not is_the_same_or_refused(folder, expected)
            shutil.rmtree(folder)
    assert refused > 20


def edited(path: Path, *keys: str, value: Any) -> None:
    whole = found = json.loads(path.read_text())
    for key in keys[:-1]:
        found = found[key]
    if value is None:
        del found[keys[-1]]
    else:
        found[keys[-1]] = value
    path.write_text(json.dumps(whole))


@pytest.mark.parametrize("value", [None, 7, "x", [], {}, ["a"], True, -1.5, float("nan")], ids=str)
@pytest.mark.parametrize("kind", ["all", "lora"])
def test_settings_of_a_wrong_kind_are_refused(kind: str, value: Any, tmp_path: Path) -> None:
    """In the model's configuration and LoRA's: those of the addresses are with the addresses."""
    expected = folder_with(kind, tmp_path / "whole")
    config = json.loads((tmp_path / "whole" / "config.json").read_text())
    for keys in (["model_type"], [kind if kind == "lora" else "model"], *_inside(config)):
        if keys[-1] not in DECISIVE:
            continue
        shutil.copytree(tmp_path / "whole", tmp_path / "damaged")
        edited(tmp_path / "damaged" / "config.json", *keys, value=value)
        is_the_same_or_refused(tmp_path / "damaged", expected)
        shutil.rmtree(tmp_path / "damaged")


DECISIVE = ("model_type", "model", "lora", "hidden_size", "num_attention_heads", "vocab_size", "peft_type", "r")


def _inside(config: dict[str, Any]) -> list[list[str]]:
    return [[outer, inner] for outer in ("model", "lora") for inner in config.get(outer, {})]


SETTINGS: list[tuple[str, Any]] = [
    ("units", None), ("units", 5), ("units", {}), ("units", {"rule": 5}), ("units", {"rule": "TextRule"}),
    ("units", {"rule": "Mine", "parameters": {}}), ("units", {"length": 0}), ("max_length", None),
    ("max_length", "16"),
    ("max_length", True), ("max_length", 0), ("reader", "x"), ("reader", ["x"]), ("reader", [-1]),
    ("learn_competition", 1), ("competition", "x"), ("window", -1), ("window", True), ("window", 1.5), ("window", "9"),
    ("window", None), ("window", 10**12),
    ("competition", float("nan")),
    ("gate", None), ("gate", 2), ("gate", float("inf")), ("layers", []), ("turnings", []), ("turnings", {"0": 5}),
    ("turnings", {"0": {"frequency": ["x"]}}), ("hidden_size", None), ("hidden_size", 5), ("format", 99),
    ("format", []), ("format", "1"), ("more", 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), SETTINGS, ids=str)
@pytest.mark.parametrize("everywhere", [True, False])
def test_settings_of_addresses_that_cannot_be_are_refused(
    everywhere: bool, name: str, value: Any, tmp_path: Path
) -> None:
    """``everywhere``: in the safetensors file too, where nothing shows that they were changed."""
    saved("all", tmp_path / "saved")
    path = tmp_path / "saved" / "contentrope.json"
    edited(path, name, value=value)
    if everywhere:
        tensors = load_file(tmp_path / "saved" / "contentrope.safetensors")
        save_file(tensors, tmp_path / "saved" / "contentrope.safetensors", metadata={"contentrope": path.read_text()})
    with pytest.raises((CheckpointError, InputError)):
        load_any(str(tmp_path / "saved"))


def test_a_gate_beside_a_window_is_refused(tmp_path: Path) -> None:
    saved("all", tmp_path / "saved", window=9)
    path = tmp_path / "saved" / "contentrope.json"
    edited(path, "gate", value=0.5)
    tensors = load_file(tmp_path / "saved" / "contentrope.safetensors")
    save_file(tensors, tmp_path / "saved" / "contentrope.safetensors", metadata={"contentrope": path.read_text()})
    with pytest.raises(CheckpointError):
        load_any(str(tmp_path / "saved"))


@pytest.mark.parametrize("kind", ["plain", "all", "lora"])
def test_missing_weights_are_not_made_up(kind: str, tmp_path: Path) -> None:
    """transformers would draw them at random, PEFT would leave them at zero."""
    folder_with(kind, tmp_path / "saved")
    names = {"plain": "model.safetensors", "all": "model.contentrope.safetensors", "lora": "adapter_model.safetensors"}
    path = tmp_path / "saved" / names[kind]
    tensors = load_file(path)
    del tensors[next(name for name in tensors if "q_proj" in name)]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"q_proj|saved"):
        load_any(str(tmp_path / "saved"))


@pytest.mark.parametrize("kind", ["plain", "all", "lora", "earlier lora"])
def test_pickles_are_refused_with_the_way_out(kind: str, tmp_path: Path) -> None:
    folder_with(kind, tmp_path / "saved")
    for path in (tmp_path / "saved").glob("*model*.safetensors"):
        path.unlink()
        torch.save({}, path.with_name("adapter_model.bin" if "lora" in kind else "pytorch_model.bin"))
    with pytest.raises(CheckpointError, match=r"model\.bin.*pickle.*safetensors"):
        load_any(str(tmp_path / "saved"))


def test_addresses_without_any_settings_are_no_plain_model(tmp_path: Path) -> None:
    converted("all", tmp_path / "saved").save_pretrained(tmp_path / "saved")
    edited(tmp_path / "saved" / "config.json", "contentrope", value=None)
    assert not is_converted(tmp_path / "saved")
    with pytest.raises(CheckpointError, match="addresses"):
        load_model(str(tmp_path / "saved"))


def test_tokens_that_a_model_does_not_know_are_refused(tmp_path: Path) -> None:
    config = config_of(str(saved_original(tmp_path / "saved")))
    require_embedded(torch.tensor([[0, config.vocab_size - 1]]), config, "mine")
    require_embedded(torch.zeros(1, 0, dtype=torch.int64), config, "mine")
    with pytest.raises(InputError, match=f"mine.*{config.vocab_size}"):
        require_embedded(torch.tensor([[0, config.vocab_size]]), config, "mine")


def test_a_damaged_configuration_is_named_where_checkpoints_are_looked_for(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(DEEP)
    with pytest.raises(InputError, match=r"config\.json"):
        is_checkpoint(tmp_path)
