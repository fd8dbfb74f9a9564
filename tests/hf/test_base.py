"""Changes of LoRA are loaded onto the weights that they were made for, and onto no others of the same shape."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import contentrope as cr
import contentrope.hf as chf
from contentrope.hf.base import base_fingerprint
from tests.hf.models import enliven, logits, random_ids, tiny

peft = pytest.importorskip("peft")


def save_base(folder: Path, seed: int = 0, dtype: torch.dtype = torch.float32) -> Path:
    tiny("llama", seed=seed, dtype=dtype).save_pretrained(folder)
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save_base(tmp_path / "base")


def converted(base: Path, folder: Path, dtype: str | torch.dtype = "auto") -> Path:
    from transformers import AutoModelForCausalLM

    model = chf.attach(AutoModelForCausalLM.from_pretrained(base, dtype=dtype).eval(), units={3}, max_length=7)
    enliven(model)
    changes = peft.LoraConfig(r=2, target_modules="all-linear", modules_to_save=["contentrope"], task_type="CAUSAL_LM")
    chf.save_pretrained(peft.get_peft_model(model, changes), folder)
    return folder


def test_another_base_of_the_same_shape_is_refused(base: Path, tmp_path: Path) -> None:
    folder, other = converted(base, tmp_path / "lora"), save_base(tmp_path / "other", seed=1)
    assert chf.from_pretrained(folder) is not None
    assert chf.from_pretrained(folder, base=save_base(tmp_path / "moved")) is not None
    with pytest.raises(cr.CheckpointError, match="other weights") as caught:
        chf.from_pretrained(folder, base=other)
    assert str(other) in str(caught.value)


def test_a_folder_of_an_earlier_version_says_nothing_of_its_base(base: Path, tmp_path: Path) -> None:
    folder, other = converted(base, tmp_path / "lora"), save_base(tmp_path / "other", seed=1)
    config = json.loads((folder / "config.json").read_text())
    assert config.pop("base_fingerprint")
    (folder / "config.json").write_text(json.dumps(config))
    assert chf.from_pretrained(folder, base=other) is not None


def test_a_fingerprint_that_is_none_is_refused(base: Path, tmp_path: Path) -> None:
    folder = converted(base, tmp_path / "lora")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "base_fingerprint": "x"}))
    with pytest.raises(cr.CheckpointError, match="base_fingerprint"):
        chf.from_pretrained(folder)


@pytest.mark.parametrize("made_in", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("stored_in", [torch.float32, torch.bfloat16])
def test_the_base_may_be_in_any_precision(made_in: torch.dtype, stored_in: torch.dtype, tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", dtype=stored_in)
    folder = converted(base, tmp_path / "lora", dtype=made_in)
    for dtype in ("auto", torch.float32, torch.bfloat16, torch.float16):
        assert chf.from_pretrained(folder, dtype=dtype) is not None
    with pytest.raises(cr.CheckpointError, match="other weights"):
        chf.from_pretrained(folder, base=save_base(tmp_path / "other", seed=1, dtype=stored_in))


def test_training_lora_leaves_the_fingerprint_and_merging_has_none(base: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = chf.attach(AutoModelForCausalLM.from_pretrained(base), units={3}, max_length=7)
    plain = base_fingerprint(model)
    lora = peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules="all-linear", modules_to_save=["contentrope"])
    )
    with torch.no_grad():
        for weight in lora.parameters():
            if weight.requires_grad:
                weight.add_(0.1)
    assert base_fingerprint(lora) == plain
    assert logits(lora, random_ids(1, 9)).isfinite().all()
    lora.merge_adapter()
    assert base_fingerprint(lora) is None
