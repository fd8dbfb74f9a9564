"""Architectures as they come: attached to and used, or refused with a reason; never anything else."""

from __future__ import annotations

import re

import pytest
import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as NAMES

import contentrope as cr
import contentrope.hf as chf
from contentrope.hf import keys
from tests.hf import architectures
from tests.hf.architectures import DOCUMENT, Outcome, config_of, outcome, table, tiny

SUPPORTED = (
    "afmoe", "apertus", "cohere2_moe", "dbrx", "doge", "exaone4", "gemma3n_text", "gemma4_text", "glm4_moe", "gpt_oss",
    "granite_swa", "mimo_v2_flash", "ministral3", "modernbert-decoder", "persimmon",
)  # fmt: skip
REFUSED = {
    "blt": "no plain decoder",
    "deepseek_v3": "after they were cached",
    "diffllama": "4 times for one text",
    "falcon_h1": "more in its cache",
    "gpt2": "no rotary embedding",
    "hrm_text": "2 attention modules 16 times",
    "hunyuan_v1_dense": "planes that are not known",
    "jetmoe": "after they were cached",
    "llama4_text": "not by cosines and sines",
    "minimax": "more in its cache",
    "mllama": "2 of 3 layers",
    "zamba2": "more in its cache",
    "zaya": "more in its cache",
}


@pytest.mark.parametrize("name", [name for name in SUPPORTED if name in NAMES])
def test_supported_architectures_can_be_used(name: str) -> None:
    assert outcome(name) == Outcome("supported", "")


@pytest.mark.parametrize("name", [name for name in REFUSED if name in NAMES])
def test_others_are_refused_with_the_reason_and_left_as_they_were(name: str) -> None:
    model = tiny(name)
    attention, attributes = model.config._attn_implementation, set(vars(model.base_model))
    for check in (True, False):
        with pytest.raises(cr.InputError, match=f"{type(model).__name__}.*{REFUSED[name]}"):
            chf.attach(model, units={3}, max_length=8, check=check)
    assert (model.config._attn_implementation, set(vars(model.base_model))) == (attention, attributes)
    assert not [m for m in model.modules() if m._forward_pre_hooks or m._forward_hooks]


def test_a_cache_of_the_models_own_is_refused_by_its_name() -> None:
    config = config_of("minimax")
    config.layer_types = ["full_attention"] * config.num_hidden_layers
    model = type(tiny("minimax"))(config).eval()
    with pytest.raises(cr.InputError, match=r"MiniMaxForCausalLM.*DynamicCache"):
        chf.attach(model, units={3})


def test_using_a_model_finds_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    model = chf.attach(tiny("llama"), units={3}, max_length=8)
    monkeypatch.setattr(keys, "rotate_in_place", lambda *args: None)
    with pytest.raises(AssertionError, match="differ"):
        architectures.use(model)


def test_the_table_has_every_architecture_once() -> None:
    written = DOCUMENT.read_text()
    rows = re.findall(r"^\| [^|]* \| (\d+) \| ([^|]*) \|$", written[written.index(architectures.BEGIN) :], re.MULTILINE)
    named = [name for _, names in rows for name in names.split(", ")]
    assert sum(int(count) for count, _ in rows) == len(named) == len(set(named)) >= 150
    supported = set(rows[0][1].split(", "))
    assert supported >= set(SUPPORTED)
    assert not supported & set(REFUSED)


def test_a_table_groups_by_reason() -> None:
    found = {
        "a": Outcome("supported", ""),
        "b": Outcome("refused", "X has no rotary embedding module, so"),
        "c": Outcome("broke", "Y"),
    }
    assert table(found).count("\n| ") == 5
    assert "| broke | 1 | c |" in table(found)


def test_tiny_models_are_random_but_the_same() -> None:
    one, other = tiny("llama").state_dict(), tiny("llama").state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert "llama" in NAMES
