"""A model's frequencies are its own, whatever dtype it is held in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

import contentrope as cr
import contentrope.hf as chf
from contentrope.hf.probe import rotary_modules
from tests.hf.models import TERMINATOR, enliven, tiny

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
KINDS = ("llama", "llama, scaled", "llama, yarn", "llama, dynamic", "phi3, long", "glm", "gemma3", "cohere")


def loaded(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    return chf.attach(model, units={TERMINATOR}, max_length=7)


def frequencies(model: PreTrainedModel) -> list[torch.Tensor]:
    return [rotary.frequency for rotary in chf.adapter_of(model).rotaries]


def own_frequencies(model: PreTrainedModel) -> list[torch.Tensor]:
    return [b.double() for m in rotary_modules(model) for n, b in m.named_buffers() if n.endswith("inv_freq")]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("saved", DTYPES)
def test_addresses_saved_in_one_dtype_load_in_every_other(name: str, saved: torch.dtype, tmp_path: Path) -> None:
    tiny(name, dtype=torch.float32).to(saved).save_pretrained(tmp_path / "model")
    model = enliven(loaded(tmp_path / "model", saved))
    chf.save(model, tmp_path / "addresses")
    expected = model.contentrope.state_dict()
    for dtype in DTYPES:
        other = loaded(tmp_path / "model", dtype)
        chf.load(other, tmp_path / "addresses")
        assert all(torch.equal(weight, expected[key]) for key, weight in other.contentrope.state_dict().items())
        own = own_frequencies(other)
        assert all(any(torch.equal(found, f) for f in own) for found in frequencies(other))
        assert all(map(torch.equal, frequencies(other), frequencies(model)))


@pytest.mark.parametrize("name", KINDS)
def test_a_model_cast_as_a_whole_rotates_by_what_it_was_cast_to(name: str, tmp_path: Path) -> None:
    """Casting rounds its frequencies too. It is read by those; its addresses fit the model as it was."""
    whole = chf.attach(tiny(name, dtype=torch.float32), units={TERMINATOR}, max_length=7)
    chf.save(enliven(whole), tmp_path)
    model = tiny(name, dtype=torch.bfloat16)
    chf.attach(model, units={TERMINATOR}, max_length=7)
    rounded = own_frequencies(model)
    assert all(any(torch.equal(found, f) for f in rounded) for found in frequencies(model))
    assert not all(map(torch.equal, frequencies(model), frequencies(whole)))
    chf.load(model, tmp_path)


def test_cosines_that_are_rounded_whatever_is_asked_are_refused() -> None:
    model: Any = tiny("llama", dtype=torch.float32).bfloat16()
    rotary = model.model.rotary_emb
    own = type(rotary).forward
    rotary.forward = lambda x, position_ids: tuple(y.bfloat16() for y in own(rotary, x, position_ids))
    with pytest.raises(cr.InputError, match=r"LlamaForCausalLM.*bfloat16"):
        chf.attach(model, units={TERMINATOR})
