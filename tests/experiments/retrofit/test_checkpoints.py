"""Checkpoints: what is saved comes back, whole or not at all; what cannot be had is refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

import contentrope.hf as chf
from contentrope.errors import CheckpointError, InputError
from contentrope.experiments.retrofit.checkpoints import (
    is_checkpoint,
    load_any,
    load_model,
    load_tokenizer,
    save_converted,
)
from tests.experiments.retrofit.tiny import LINES, TOKENIZER, addressed_reader, lively_reader, saved_original


def test_the_original_is_an_ordinary_checkpoint(tmp_path: Path) -> None:
    folder = saved_original(tmp_path / "original")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "abc\n\n  gh zz\n"
    assert tokenizer(text)["input_ids"] == TOKENIZER(text)["input_ids"]
    assert tokenizer.decode(tokenizer("abc\n\n  gh\n")["input_ids"]) == "abc\n\n  gh\n"
    with torch.no_grad():
        again = AutoModelForCausalLM.from_pretrained(folder)(LINES).logits
        torch.testing.assert_close(again, lively_reader()(LINES))


@pytest.mark.parametrize("anchors", [(), (0, 1)], ids=str)
@pytest.mark.parametrize("train", ["all", "lora", "addresses"])
@torch.no_grad()
def test_a_converted_model_comes_back(train: str, anchors: tuple[int, ...], tmp_path: Path) -> None:
    reader = addressed_reader(train=train, anchors=anchors, competition=0.5)
    expected = reader(LINES)
    if train == "lora":
        reader.model.peft_config["default"].base_model_name_or_path = str(saved_original(tmp_path / "original"))
    save_converted(reader.model, TOKENIZER, tmp_path / "saved")
    assert is_checkpoint(tmp_path / "saved")
    model, tokenizer = load_any(str(tmp_path / "saved"))
    torch.testing.assert_close(model(LINES).logits, expected)
    adapter = chf.adapter_of(model)
    assert (adapter.gate, adapter.competition, adapter.segmenter.max_length) == (0.0, 0.5, 16)
    assert tokenizer.decode(LINES[0].tolist()) == "abc\nab cdefgh\nab\nfa"


def test_weights_are_saved_once(tmp_path: Path) -> None:
    save_converted(addressed_reader().model, TOKENIZER, tmp_path / "saved")
    with safe_open(tmp_path / "saved" / "model.safetensors", framework="pt") as file:
        assert not [name for name in file.keys() if name.startswith("contentrope")]  # noqa: SIM118


def test_a_plain_checkpoint_is_loaded_as_it_is(tmp_path: Path) -> None:
    model, _ = load_any(str(saved_original(tmp_path / "original")))
    with pytest.raises(InputError, match="has no addresses"):
        chf.adapter_of(model)


def test_units_by_number_and_memory_come_back(tmp_path: Path) -> None:
    model: Any = chf.attach(lively_reader().model, units=5, max_length=8, reader={3}, learn_competition=True)
    save_converted(model, TOKENIZER, tmp_path / "saved")
    again, _ = load_any(str(tmp_path / "saved"))
    with torch.no_grad():
        torch.testing.assert_close(again(LINES).logits, model(LINES).logits)


def test_a_rule_of_ones_own_is_left_to_its_owner(tmp_path: Path) -> None:
    save_converted(addressed_reader().model, TOKENIZER, tmp_path / "saved")
    settings = json.loads((tmp_path / "saved" / "contentrope.json").read_text())
    (tmp_path / "saved" / "contentrope.json").write_text(json.dumps({**settings, "units": {"rule": "Mine"}}))
    with pytest.raises(CheckpointError, match="attach with it in Python"):
        load_any(str(tmp_path / "saved"))


def test_without_a_connection_a_hub_name_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for load in (load_tokenizer, load_model):
        with pytest.raises(InputError) as error:
            load("nobody/nothing")
        message = str(error.value)
        assert "model 'nobody/nothing' is no folder here, and the hub did not give it" in message
        assert "hf download nobody/nothing --local-dir DIR" in message


def test_a_path_is_no_hub_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no folder '/nowhere/at/all'; check the path"):
        load_tokenizer("/nowhere/at/all")
    with pytest.raises(CheckpointError, match="holds no model that transformers can load"):
        load_model(str(tmp_path))
    assert not is_checkpoint(tmp_path)
