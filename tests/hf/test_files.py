"""Addresses are saved with their settings, and refused where they do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import contentrope as cr
import contentrope.hf as chf
from contentrope.sealed import sealed
from tests.hf.models import TERMINATOR, attached, enliven, logits, random_ids, tiny


@pytest.mark.parametrize("name", ["llama", "gemma3", "glm"])
def test_saved_addresses_come_back(name: str, tmp_path: Path) -> None:
    model, ids = attached(name, positions=0.25), random_ids(2, 19)
    chf.save(model, tmp_path)
    other = attached(name, positions="global", lively=False)
    assert not torch.equal(logits(other, ids), logits(model, ids))
    chf.load(other, tmp_path)
    assert torch.equal(logits(other, ids), logits(model, ids))
    assert chf.adapter_of(other).gate == 0.25
    assert json.loads((tmp_path / "contentrope.json").read_text())["gate"] == 0.25


def test_loading_without_attaching_is_refused(tmp_path: Path) -> None:
    chf.save(attached("llama"), tmp_path)
    with pytest.raises(cr.InputError, match="attach"):
        chf.load(tiny("llama"), tmp_path)


OTHERS: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "hidden size": ("llama", {"hidden_size": 64}, {}, "hidden_size: 64 here, 32"),
    "heads": ("llama", {"num_key_value_heads": 4}, {}, "turnings.0.heads: 4 here, 2"),
    "frequencies": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}, {}, "frequency"),
    "layout": ("cohere", {}, {}, "pairs: 'interleaved' here, 'half'"),
    "layers": ("llama", {"num_hidden_layers": 3}, {}, "layers"),
    "units": ("llama", {}, {"units": {5}}, "units.parameters.ids"),
    "length": ("llama", {}, {"max_length": 8}, "max_length: 8 here, 7"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_addresses_of_another_model_are_refused(case: str, tmp_path: Path) -> None:
    chf.save(attached("llama"), tmp_path)
    name, settings, arguments, message = OTHERS[case]
    model = tiny(name, **settings)
    chf.attach(model, **{"units": {TERMINATOR}, "max_length": 7, **arguments})
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(cr.CheckpointError, match=message):
        chf.load(model, tmp_path)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    model = attached("llama")
    with pytest.raises(cr.CheckpointError, match="no addresses"):
        chf.load(model, tmp_path)
    chf.save(model, tmp_path)
    whole = (tmp_path / "contentrope.safetensors").read_bytes()
    (tmp_path / "contentrope.safetensors").write_bytes(whole[:-9])
    with pytest.raises(cr.CheckpointError, match="damaged"):
        chf.load(model, tmp_path)
    with torch.no_grad():
        next(model.contentrope.parameters()).fill_(torch.nan)
    chf.save(model, tmp_path)
    with pytest.raises(cr.CheckpointError, match="damaged"):
        chf.load(model, tmp_path)


def test_a_model_saved_whole_does_not_lose_its_addresses_in_silence(tmp_path: Path) -> None:
    model, ids = attached("llama", dtype=torch.float32), random_ids(2, 19)
    model.save_pretrained(tmp_path)
    other = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    chf.attach(other, units={TERMINATOR}, max_length=7)
    with pytest.raises(cr.CheckpointError, match="saved with addresses"):
        logits(other, ids)
    chf.load(other, tmp_path)
    assert torch.equal(logits(other, ids), logits(model, ids))
    enliven(other)
    chf.detach(other)
    other.save_pretrained(tmp_path / "plain")
    assert "contentrope" not in (tmp_path / "plain" / "config.json").read_text()


@pytest.mark.parametrize(
    ("number", "off", "fits"),
    [(2, 1e-6, True), (2, 1e-3, False), (1, 3.3e-3, True), (1, 2e-2, False)],
    ids=["rounded", "others", "measured in bf16 by an earlier version", "others, earlier"],
)
def test_frequencies_are_compared_as_precisely_as_they_were_written(
    number: int, off: float, fits: bool, tmp_path: Path
) -> None:
    model, ids = attached("llama"), random_ids(2, 19)
    chf.save(model, tmp_path)
    settings = json.loads((tmp_path / "contentrope.json").read_text()) | {"format": number}
    rotary = settings["turnings"]["0"]
    rotary["frequency"] = [float(f"{x * (1 + off):.6g}") for x in rotary["frequency"]]
    tensors = load_file(tmp_path / "contentrope.safetensors")
    (tmp_path / "contentrope.safetensors").write_bytes(sealed(settings, tensors))
    (tmp_path / "contentrope.json").unlink()
    other = attached("llama", lively=False)
    if fits:
        chf.load(other, tmp_path)
        assert torch.equal(logits(other, ids), logits(model, ids))
    else:
        with pytest.raises(cr.CheckpointError, match=r"turnings\.0\.frequency"):
            chf.load(other, tmp_path)


def test_settings_beside_the_addresses_are_those_inside(tmp_path: Path) -> None:
    model = attached("llama")
    chf.save(model, tmp_path)
    path = tmp_path / "contentrope.json"
    path.write_text(path.read_text().replace('"max_length": 7', '"max_length": 8'))
    with pytest.raises(cr.CheckpointError, match=r"contentrope\.json.*max_length"):
        chf.load(model, tmp_path)
    path.unlink()
    chf.load(model, tmp_path)
