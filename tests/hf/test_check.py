"""A model that is not attached to as it should be is refused before it is returned, and left as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import contentrope as cr
import contentrope.hf as chf
from contentrope.hf import attention, keys, probe, reading
from contentrope.hf.check import Check
from contentrope.hf.frame import Frame
from tests.hf.models import ARCHITECTURES, TERMINATOR, attached, logits, random_ids, tiny

Plant = Callable[[pytest.MonkeyPatch, Any], None]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def wrong_layout(patch: pytest.MonkeyPatch, model: Any) -> None:
    def rotary_of(*args: Any) -> Any:
        right = own(*args)
        return right and replace(right, pairs="interleaved" if right.pairs == "half" else "half")

    own = probe.rotary_of
    patch.setattr(probe, "rotary_of", rotary_of)


def wrong_direction(patch: pytest.MonkeyPatch, model: Any) -> None:
    def rotary_of(*args: Any) -> Any:
        right = own(*args)
        return right and replace(right, backwards=not right.backwards)

    own = probe.rotary_of
    patch.setattr(probe, "rotary_of", rotary_of)


def frequencies_off_by_a_hundredth(patch: pytest.MonkeyPatch, model: Any) -> None:
    def rotary_of(*args: Any) -> Any:
        right = own(*args)
        return right and replace(right, frequency=1.01 * right.frequency)

    own = probe.rotary_of
    patch.setattr(probe, "rotary_of", rotary_of)


def keys_rotated_twice(patch: pytest.MonkeyPatch, model: Any) -> None:
    """Only where they lie in a cache."""

    def twice(*args: Any) -> None:
        own(*args)
        own(*args)

    own = keys.rotate_in_place
    patch.setattr(keys, "rotate_in_place", twice)


def chunks_not_rotated(patch: pytest.MonkeyPatch, model: Any) -> None:
    def readdressed(key: Any, layer: Any, *args: Any, in_place: bool) -> Any:
        return key if layer is not None and not in_place else own(key, layer, *args, in_place=in_place)

    own = attention.readdressed
    patch.setattr(attention, "readdressed", readdressed)


def leaked_address(patch: pytest.MonkeyPatch, model: Any) -> None:
    """Queries carry the address of their own, still open, unit."""

    def of_queries(rotation: Any, units: Any) -> Any:
        return type(rotation)(*(None if x is None else x[:, -units.seq_length :] for x in rotation))

    patch.setattr(reading, "_of_queries", of_queries)


def reads_ahead(patch: pytest.MonkeyPatch, model: Any) -> None:
    """The model itself does."""
    module = model.model.layers[1].self_attn
    own = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        out, *rest = own(*args, **kwargs)
        return out + kwargs["hidden_states"].mean(1, keepdim=True), *rest

    module.forward = forward


def queries_scaled_by_position(patch: pytest.MonkeyPatch, model: Any) -> None:
    """By the one that the rotary embedding is told, from where no probe looks."""
    own = model.model.rotary_emb.forward

    def forward(x: Any, position_ids: Any) -> Any:
        scale = (1 + 0.5 * (position_ids >= 8))[..., None].to(x.dtype)
        return tuple(scale * part for part in own(x, position_ids))

    model.model.rotary_emb.forward = forward


def positions_moved_on(patch: pytest.MonkeyPatch, model: Any) -> None:
    """By one, which rotary positions do not mind but for rounding."""
    own = Frame.positions
    patch.setattr(Frame, "positions", lambda self, given, gate: own(self, given, gate) + 1)


def forgets_what_the_cache_holds(patch: pytest.MonkeyPatch, model: Any) -> None:
    patch.setattr(Frame, "commit", lambda self: None)


ZERO, ORACLE, CAUSAL, CACHE = "zero addresses", "positions back", "later tokens", "a cache"
FAULTS: dict[str, tuple[Plant, str]] = {
    "layout": (wrong_layout, ORACLE),
    "direction": (wrong_direction, ORACLE),
    "frequencies": (frequencies_off_by_a_hundredth, ORACLE),
    "queries scaled": (queries_scaled_by_position, ORACLE),
    "address leaked": (leaked_address, ORACLE),
    "reads ahead": (reads_ahead, CAUSAL),
    "rotated twice": (keys_rotated_twice, CACHE),
    "not rotated": (chunks_not_rotated, CACHE),
    "not committed": (forgets_what_the_cache_holds, CACHE),
}


def state(model: PreTrainedModel) -> dict[str, Any]:
    return {
        "config": model.config.to_dict(),
        "attention": model.config._attn_implementation,
        "generation": model.generation_config.to_dict(),
        "training": [(name, module.training) for name, module in model.named_modules()],
        "hooks": [n for n, m in model.named_modules() if m._forward_pre_hooks or m._forward_hooks],
        "attributes": [sorted(vars(module)) for module in model.modules()],
        "weights": {name: (id(x), x._version) for name, x in model.named_parameters()},
        "buffers": {name: x.tolist() for name, x in model.named_buffers()},
        "random": torch.get_rng_state().tolist(),
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_the_model_left_as_it_was(
    fault: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("llama", dtype=dtype).train()
    model.model.layers[1].eval()
    plant, found_by = FAULTS[fault]
    plant(monkeypatch, model)
    before = state(model)
    with pytest.raises(cr.InputError, match=rf"LlamaForCausalLM.*{found_by}"):
        chf.attach(model, units={TERMINATOR}, max_length=7)
    assert state(model) == before
    chf.attach(model, units={TERMINATOR}, max_length=7, check=False)


def test_an_address_that_leaks_is_found_by_causality_too(monkeypatch: pytest.MonkeyPatch) -> None:
    leaked_address(monkeypatch, None)
    monkeypatch.setattr(Check, "shifted", lambda self: None)
    with pytest.raises(cr.InputError, match=CAUSAL):
        chf.attach(tiny("llama"), units={TERMINATOR}, max_length=7)


def test_what_changes_bits_only_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    positions_moved_on(monkeypatch, None)
    with pytest.raises(cr.InputError, match=ZERO):
        chf.attach(tiny("llama", dtype=torch.float32), units={TERMINATOR}, max_length=7)


@pytest.mark.parametrize("wrong", ["pairs", "frequency"])
def test_one_layer_among_many_is_named(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama", num_hidden_layers=5)
    own, calls = probe.rotary_of, list[int]()

    def rotary_of(*args: Any) -> Any:
        calls.append(len(calls))
        right = own(*args)
        other = {"pairs": "interleaved", "frequency": 1.01 * right.frequency}
        return replace(right, **{wrong: other[wrong]}) if calls[-1] // 2 == 3 else right

    monkeypatch.setattr(probe, "rotary_of", rotary_of)
    with pytest.raises(cr.InputError, match="layer 3"):
        chf.attach(model, units={TERMINATOR}, max_length=7)


def restless(model: Any, size: Callable[[bool], float]) -> PreTrainedModel:
    """No two answers are the same; ``size`` tells by how much, when asked with addresses and when without."""
    module = model.model.layers[1].self_attn
    generator, own = torch.Generator().manual_seed(0), module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        out, *rest = own(*args, **kwargs)
        noise = torch.randn(out.shape, generator=generator)
        return out + size(kwargs.get(attention.KEYWORD) is not None) * noise, *rest

    module.forward = forward
    return model


def test_a_model_that_never_says_the_same_twice_is_let_pass() -> None:
    """As on a GPU, or among experts that rows share; but not what is worse than that."""
    chf.attach(restless(tiny("llama", dtype=torch.float32), lambda addressed: 1e-6), units={TERMINATOR})
    worse = restless(tiny("llama", dtype=torch.float32), lambda addressed: 1e-4 if addressed else 1e-6)
    with pytest.raises(cr.InputError, match=ZERO):
        chf.attach(worse, units={TERMINATOR})


SETTINGS: dict[str, dict[str, Any]] = {
    "anchors": {"anchors": 1},
    "competition": {"competition": 1.5},
    "learned": {"competition": 0.5, "learn_competition": True},
    "between": {"positions": 0.5},
    "memory": {"reader": {9}},
    "tokens": {"max_length": 1},
    "long": {"max_length": 200},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["llama", "gemma3", "mistral, window", "gpt_oss", "nanochat"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_right_models_pass_with_all_settings(settings: str, name: str, dtype: torch.dtype) -> None:
    model = tiny(name, dtype=dtype)
    weights, found = {k: x._version for k, x in model.named_parameters()}, []
    for check in (True, False):
        torch.manual_seed(3)
        chf.attach(model, units={TERMINATOR}, check=check, **{"max_length": 7, **SETTINGS[settings]})
        found.append(torch.get_rng_state())
        assert not any(p.any() for p in model.contentrope.by_turning[0].project.parameters())
        chf.detach(model)
    assert torch.equal(*found), "the check draws random numbers"
    assert {k: x._version for k, x in model.named_parameters()} == weights


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_right_models_pass_in_every_dtype(name: str, dtype: torch.dtype) -> None:
    model = tiny(name, dtype=dtype)
    chf.attach(model, units={TERMINATOR}, max_length=7)
    assert not chf.adapter_of(model).running


# --- what is refused before ---


@pytest.mark.parametrize("broken", ["model.layers.1.self_attn.k_proj.weight", "model.layers.1.mlp.down_proj.weight"])
def test_weights_that_are_no_numbers_are_named(broken: str) -> None:
    model = tiny("llama")
    with torch.no_grad():
        model.get_parameter(broken)[0, 0] = torch.nan
    with pytest.raises(cr.InputError, match=f"{broken}.*NaN"):
        chf.attach(model, units={TERMINATOR})


def test_a_model_without_data_is_refused() -> None:
    model = tiny("llama").to("meta")
    with pytest.raises(cr.InputError, match="meta"):
        chf.attach(model, units={TERMINATOR})


@pytest.mark.parametrize("anchors", [99999, [0, 256], 1.5, "1", -1])
def test_absurd_anchors_are_refused(anchors: Any) -> None:
    named = str(anchors[-1] if isinstance(anchors, list) else anchors)
    with pytest.raises(cr.InputError, match=rf"anchors.*{named}"):
        chf.attach(tiny("llama"), units={TERMINATOR}, anchors=anchors)


def test_an_attached_model_goes_on_from_the_check() -> None:
    ids = random_ids(2, 19)
    assert torch.equal(logits(attached("llama"), ids), logits(attached("llama"), ids))
