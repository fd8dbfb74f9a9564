"""With zero addresses a model is what it was, to the last bit; detached, it is so again. What cannot be, is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers

import contentrope as cr
import contentrope.hf as chf
from contentrope.hf.probe import rotary_modules
from tests.hf.models import ARCHITECTURES, SIZES, TERMINATOR, attached, enliven, logits, random_ids, tiny

every = pytest.mark.parametrize("name", ARCHITECTURES)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_zero_addresses_and_global_positions_change_no_bit(name: str, dtype: torch.dtype) -> None:
    model, ids = tiny(name, dtype=dtype), random_ids(2, 23)
    padding = torch.arange(23) >= torch.tensor([[0], [4]])
    expected = logits(model, ids), logits(model, ids, attention_mask=padding)
    recorded = model(ids).logits.detach()
    chf.attach(model, units={TERMINATOR}, positions="global", max_length=7)
    assert torch.equal(logits(model, ids), expected[0])
    assert torch.equal(logits(model, ids, attention_mask=padding)[padding], expected[1][padding])
    assert torch.equal(model(ids).logits.detach(), recorded)


@every
def test_detached_a_model_is_what_it_was(name: str) -> None:
    model, ids = tiny(name, dtype=torch.float32), random_ids(2, 23)
    expected, before = logits(model, ids), set(model.state_dict())
    chf.attach(model, units={TERMINATOR}, positions="local", max_length=7)
    enliven(model)
    assert not torch.allclose(logits(model, ids), expected, atol=1e-2)
    chf.detach(model)
    assert torch.equal(logits(model, ids), expected)
    assert set(model.state_dict()) == before
    hooks = [m for m in model.modules() if m._forward_pre_hooks or m._forward_hooks]
    assert not hooks


def test_the_eager_attention_of_a_model_is_kept_too() -> None:
    model, ids = tiny("llama", dtype=torch.float32), random_ids(2, 23)
    model.set_attn_implementation("eager")
    expected = logits(model, ids)
    chf.attach(model, units={TERMINATOR}, positions="global")
    assert torch.equal(logits(model, ids), expected)
    assert chf.detach(model).config._attn_implementation == "eager"


def test_zero_addresses_and_local_positions_move_a_model() -> None:
    model, ids = tiny("llama"), random_ids(2, 23)
    expected = logits(model, ids)
    chf.attach(model, units={TERMINATOR}, positions="local")
    assert float((logits(model, ids) - expected).abs().max()) > 1e-2


def test_the_gate_goes_from_global_to_local() -> None:
    model, ids = attached("llama", positions="global"), random_ids(1, 23)
    found = {}
    for gate in (1.0, 0.5, 1e-9, 0.0):
        chf.set_positions(model, gate)
        found[gate] = logits(model, ids)
    assert float((found[1e-9] - found[0.0]).abs().max()) < 1e-4
    assert float((found[0.5] - found[0.0]).abs().max()) > 1e-2
    assert float((found[0.5] - found[1.0]).abs().max()) > 1e-2


def test_a_model_that_shares_its_configuration_is_left_alone() -> None:
    model = tiny("llama", dtype=torch.float32)
    other, ids = type(model)(model.config).eval(), random_ids(1, 9)
    expected = logits(other, ids)
    chf.attach(model, units={TERMINATOR})
    assert torch.equal(logits(other, ids), expected)


def test_a_model_without_a_head_can_be_attached_to() -> None:
    model, ids = tiny("llama", dtype=torch.float32).model, random_ids(2, 19)
    with torch.no_grad():
        expected = model(ids).last_hidden_state
        chf.attach(model, units={TERMINATOR}, positions="global")
        assert torch.equal(model(ids).last_hidden_state, expected)
        assert not torch.equal(enliven(model)(ids).last_hidden_state, expected)


def test_a_copy_of_an_attached_model_has_addresses_of_its_own() -> None:
    model, ids = attached("llama"), random_ids(1, 19)
    expected = logits(model, ids)
    other = copy.deepcopy(model)
    enliven(other, seed=7)
    assert torch.equal(logits(model, ids), expected)
    assert not torch.equal(logits(other, ids), expected)
    assert chf.adapter_of(other).model is other


# --- units ---


class Letters:
    """A tokenizer of single characters."""

    text = "\n. " + "".join(chr(ord("0") + i) for i in range(61))

    def __len__(self) -> int:
        return len(self.text)

    def decode(self, ids: list[int]) -> str:
        return "".join(self.text[i] for i in ids)


@pytest.mark.parametrize("units", ["line", {0}, cr.Terminators({0})], ids=["text", "ids", "rule"])
def test_units_are_a_kind_of_text_or_ids_or_a_rule(units: Any) -> None:
    ids = random_ids(1, 23)
    ids[0, [4, 9, 15]] = 0
    model = tiny("llama")
    chf.attach(model, Letters(), units=units)
    found = logits(enliven(model), ids)
    assert torch.equal(logits(model, ids, unit_ends=ids == 0), found)
    assert not torch.equal(logits(model, ids, unit_ends=ids == 1), found)


def test_ids_the_tokenizer_does_not_know_stand_for_no_text() -> None:
    """Embeddings are often filled up to a round number."""

    class Few(Letters):
        text = Letters.text[:40]

    model, ids = tiny("llama"), random_ids(1, 23)
    ids[0, [4, 9]], ids[0, [2, 12]] = 0, 63
    chf.attach(model, Few(), units="line")
    found = logits(enliven(model), ids)
    assert torch.equal(logits(model, ids, unit_ends=ids == 0), found)


def test_units_are_so_many_tokens() -> None:
    model, ids = tiny("llama"), random_ids(1, 23)
    chf.attach(model, units=5)
    ends = torch.arange(23)[None] % 5 == 4
    found = logits(enliven(model), ids)
    assert torch.equal(logits(model, ids, unit_ends=ends), found)
    assert torch.equal(model(ids, labels=ids, unit_ends=ends).logits.detach(), model(ids).logits.detach())


def test_a_sentence_ends_at_its_mark() -> None:
    model, ids = tiny("llama"), random_ids(1, 12) % 10 + 52
    ids[0, [3, 8]] = 1
    chf.attach(model, Letters(), units="sentence")
    found = logits(enliven(model), ids)
    assert torch.equal(logits(model, ids, unit_ends=ids == 1), found)


# --- refusals ---


OLD = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "FalconForCausalLM": ("FalconConfig", {"alibi": False}, "AttentionInterface"),
    "GPTJForCausalLM": ("GPTJConfig", {**OLD, "rotary_dim": 4}, "AttentionInterface"),
    "CodeGenForCausalLM": ("CodeGenConfig", {**OLD, "rotary_dim": 4}, "AttentionInterface"),
    "GPT2LMHeadModel": ("GPT2Config", OLD, "no rotary embedding"),
    "Llama4ForCausalLM": ("Llama4TextConfig", {}, "not by cosines and sines"),
    "DeepseekV3ForCausalLM": ("DeepseekV3Config", {**LATENT, "first_k_dense_replace": 2}, "after they were cached"),
    "Qwen3NextForCausalLM": ("Qwen3NextConfig", {}, "one self-attention in every layer"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_architecture_that_cannot_be_followed_is_refused(name: str) -> None:
    family, own, reason = REFUSED[name]
    sizes = {key: size for key, size in SIZES.items() if key != "head_dim"}
    model = getattr(transformers, name)(
        getattr(transformers, family)(**(own if "n_layer" in own else {**sizes, **own}))
    )
    own_attention = model.config._attn_implementation
    with pytest.raises(cr.InputError, match=f"{name}.*{reason}"):
        chf.attach(model, units={TERMINATOR})
    assert model.config._attn_implementation == own_attention
    assert not [m for m in model.modules() if m._forward_pre_hooks or m._forward_hooks]


def test_wrong_arguments_are_named() -> None:
    model = tiny("llama")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"units": "verse"}, "'verse'.*line"),
        ({"units": "line"}, "tokenizer"),
        ({"units": 3.5}, "3.5"),
        ({"units": {3}, "positions": "middle"}, "'middle'"),
        ({"units": {3}, "positions": 1.5}, "1.5"),
        ({"units": {3}, "backend": "best"}, "'best'"),
        ({"units": {3}, "marker": "|"}, "marker"),
    ]
    for arguments, message in cases:
        with pytest.raises(cr.InputError, match=message):
            chf.attach(model, **arguments)
    assert model.config._attn_implementation == "sdpa"
    chf.attach(model, units={TERMINATOR})
    with pytest.raises(cr.InputError, match="already"):
        chf.attach(model, units={TERMINATOR})
    with pytest.raises(cr.InputError, match="attach"):
        chf.detach(tiny("llama"))


def test_other_attention_implementations_are_refused() -> None:
    model = tiny("llama", dtype=torch.float32)
    model.set_attn_implementation("flex_attention")
    with pytest.raises(cr.InputError, match=r"'flex_attention'.*set_attn_implementation"):
        chf.attach(model, units={TERMINATOR})


@pytest.mark.parametrize(("name", "most"), [("llama, dynamic", 256), ("phi3, long", 64)])
def test_frequencies_that_depend_on_the_length_bound_the_units(name: str, most: int) -> None:
    model = tiny(name)
    with pytest.raises(cr.InputError, match=f"max_length {most + 1}.*max_length={most}"):
        chf.attach(model, units={TERMINATOR}, max_length=most + 1)
    chf.attach(model, units={TERMINATOR}, max_length=most)


def test_another_attention_after_attaching_is_refused() -> None:
    model = attached("llama")
    model.set_attn_implementation("sdpa")
    with pytest.raises(cr.BackendError, match="'sdpa', which knows no addresses"):
        model(random_ids(1, 5))


def test_calls_that_cannot_be_read_are_refused() -> None:
    model, ids = attached("llama"), random_ids(1, 8)
    with pytest.raises(cr.InputError, match="input_ids"):
        model(inputs_embeds=model.get_input_embeddings()(ids))
    with pytest.raises(cr.InputError, match="several documents"):
        model(ids, position_ids=torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]]), use_cache=False)
    with pytest.raises(cr.InputError, match="attention_mask covers 5"):
        model(ids, attention_mask=torch.ones(1, 5))
    with pytest.raises(cr.InputError, match="output_attentions"):
        model(ids, output_attentions=True)
    with pytest.raises(cr.InputError, match="is_causal"):
        model(ids, is_causal=False)
    layer = model.model.layers[0]
    embedded, cos_sin = model.get_input_embeddings()(ids), tuple(torch.randn(2, 1, 8, 8).double())
    with pytest.raises(cr.BackendError, match="layer 0"):
        layer(embedded, position_embeddings=cos_sin)


def test_padding_reaches_the_attention() -> None:
    """Without a mask function of its own name an attention function is given no mask at all."""
    model, ids = attached("llama"), random_ids(2, 12)
    padding = torch.arange(12) >= torch.tensor([[0], [3]])
    other = torch.where(padding, ids, 9)
    found = logits(model, ids, attention_mask=padding), logits(model, other, attention_mask=padding)
    assert torch.equal(found[0][padding], found[1][padding])
    assert not torch.equal(logits(model, ids)[padding], found[0][padding])


@every
def test_the_state_of_a_call_is_gone_after_it(name: str) -> None:
    model = attached(name)
    logits(model, random_ids(1, 5))
    assert not chf.adapter_of(model).running
    assert rotary_modules(model.base_model)
