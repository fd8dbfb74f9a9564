"""LoRA with addresses: trained, saved, loaded and merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import contentrope as cr
import contentrope.hf as chf
from tests.hf.models import attached, logits, random_ids

peft = pytest.importorskip("peft")


def with_lora(model: Any, **settings: Any) -> Any:
    settings = {"target_modules": ["q_proj", "v_proj"], "modules_to_save": ["contentrope"], **settings}
    torch.manual_seed(0)
    return peft.get_peft_model(model, peft.LoraConfig(r=2, task_type="CAUSAL_LM", **settings))


def train(model: Any, ids: Tensor, steps: int = 4) -> list[float]:
    model.train()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.02)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    model.eval()
    return losses


@pytest.fixture
def ids() -> Tensor:
    return random_ids(2, 21)


def base() -> Any:
    return attached("llama", lively=False, dtype=torch.float32)


def test_lora_and_addresses_are_trained_together(ids: Tensor) -> None:
    model = with_lora(base())
    names = {n for n, p in model.named_parameters() if p.requires_grad}
    assert any("lora_A" in n for n in names)
    assert any("contentrope" in n and n.endswith("project.weight") for n in names)
    losses = train(model, ids)
    assert losses[-1] < losses[0]
    assert not chf.adapter_of(model).addresses.are_zero()
    with model.disable_adapter():
        assert torch.equal(logits(model, ids), logits(base(), ids))


def test_addresses_are_saved_with_the_adapter_and_come_back(ids: Tensor, tmp_path: Path) -> None:
    model = with_lora(base())
    train(model, ids)
    model.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(base(), tmp_path).eval()
    assert torch.equal(logits(again, ids), logits(model, ids))


def test_a_merged_model_is_a_plain_attached_one(ids: Tensor, tmp_path: Path) -> None:
    model = with_lora(base())
    train(model, ids)
    expected = logits(model, ids)
    chf.save(model, tmp_path)
    merged = model.merge_and_unload()
    torch.testing.assert_close(logits(merged, ids), expected, rtol=0, atol=1e-5)
    assert not [n for n, _ in merged.named_modules() if "lora" in n]
    assert type(merged.contentrope).__name__ == "Addresses"
    trained = merged.state_dict()
    other = base()
    chf.load(other, tmp_path)
    for name, weight in other.contentrope.state_dict().items():
        assert torch.equal(weight, trained[f"contentrope.{name}"])
    generated = merged.generate(ids, max_new_tokens=5, do_sample=False)
    assert torch.equal(generated, merged.generate(ids, max_new_tokens=5, do_sample=False, use_cache=False))


def test_adapters_with_addresses_of_their_own(ids: Tensor) -> None:
    model = with_lora(base())
    train(model, ids)
    first = logits(model, ids)
    model.add_adapter("other", model.peft_config["default"])
    model.set_adapter("other")
    assert torch.equal(logits(model, ids), logits(base(), ids))
    model.set_adapter("default")
    assert torch.equal(logits(model, ids), first)


def test_frozen_addresses_are_pointed_out(ids: Tensor) -> None:
    model = with_lora(base(), modules_to_save=None).train()
    with pytest.warns(UserWarning, match=r"modules_to_save=\['contentrope'\]"):
        model(input_ids=ids)
    model.eval()
    logits(model, ids)


def test_lora_inside_the_addresses_is_refused(ids: Tensor) -> None:
    model = with_lora(base(), target_modules="all-linear", modules_to_save=None)
    with pytest.raises(cr.InputError, match="modules_to_save"):
        model(input_ids=ids)
    model = with_lora(base(), target_modules="all-linear")
    assert train(model, ids)[0] > 0


def test_an_adapter_loaded_before_attaching_is_refused(ids: Tensor, tmp_path: Path) -> None:
    """PEFT leaves out what it finds no module for, without a word."""
    with_lora(base()).save_pretrained(tmp_path)
    plain = chf.detach(base())
    model = peft.PeftModel.from_pretrained(plain, tmp_path)
    for late in (model, plain):
        with pytest.raises(cr.InputError, match="attach"):
            chf.attach(late, units={3})
