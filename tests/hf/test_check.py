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
from contentrope import window
from contentrope.attention import pairs
from contentrope.hf import adapter, attention, frame, keys, probe, reading
from contentrope.hf.check import Check
from contentrope.hf.frame import Frame
from tests.hf.models import ARCHITECTURES, TERMINATOR, WINDOWED, attached, logits, random_ids, tiny

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


def far_queries_not_rotated(patch: pytest.MonkeyPatch, model: Any) -> None:
    own = reading.far_from_near
    patch.setattr(reading, "far_from_near", lambda *args: torch.zeros_like(own(*args)))


def leaving_keys_rotated_the_other_way(patch: pytest.MonkeyPatch, model: Any) -> None:
    own = reading.to_far
    patch.setattr(reading, "to_far", lambda *args: -own(*args))


def near_from_a_column_later(patch: pytest.MonkeyPatch, model: Any) -> None:
    """In a whole text: the first near token is read far."""
    own = pairs.near_window

    def near_window(*args: Any) -> Any:
        near = own(*args)
        return near._replace(begin=near.begin + 1)

    patch.setattr(pairs, "near_window", near_window)


def near_from_a_column_earlier(patch: pytest.MonkeyPatch, model: Any) -> None:
    own = pairs.near_window

    def near_window(*args: Any) -> Any:
        near = own(*args)
        return near._replace(begin=(near.begin - 1).clamp(min=0))

    patch.setattr(pairs, "near_window", near_window)


def wider_with_a_cache(patch: pytest.MonkeyPatch, model: Any) -> None:
    own = window.near_window
    patch.setattr(window, "near_window", lambda width, *args: own(width + 1, *args))


def narrower_with_a_cache(patch: pytest.MonkeyPatch, model: Any) -> None:
    own = window.near_window
    patch.setattr(window, "near_window", lambda width, *args: own(width - 1, *args))


def leaves_nothing_behind(patch: pytest.MonkeyPatch, model: Any) -> None:
    """Keys that leave in a chunk stay as they are."""
    own = frame.windowed

    def windowed(reading: Any, by_kernel: Any) -> Any:
        found = own(reading, by_kernel)
        is_chunk = reading.columns is not None and reading.units.seq_length > 1
        return found._replace(span=None) if is_chunk else found

    patch.setattr(frame, "windowed", windowed)


def reads_far_at_once(patch: pytest.MonkeyPatch, model: Any) -> None:
    """Even a text that fits into the window."""
    own = adapter.frame_of
    patch.setattr(adapter, "frame_of", lambda *args, **kwargs: replace(own(*args, **kwargs), as_it_stands=False))


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

FITS = "fits into the window"
WINDOW_FAULTS: dict[str, tuple[Plant, str]] = {
    "layout": (wrong_layout, ORACLE),
    "direction": (wrong_direction, ORACLE),
    "frequencies": (frequencies_off_by_a_hundredth, ORACLE),
    "far queries": (far_queries_not_rotated, ORACLE),
    "other way": (leaving_keys_rotated_the_other_way, ORACLE),
    "later": (near_from_a_column_later, ORACLE),
    "earlier": (near_from_a_column_earlier, ORACLE),
    "reads ahead": (reads_ahead, CAUSAL),
    "rotated twice": (keys_rotated_twice, CACHE),
    "not rotated": (chunks_not_rotated, CACHE),
    "nothing leaves": (leaves_nothing_behind, CACHE),
    "wider": (wider_with_a_cache, CACHE),
    "narrower": (narrower_with_a_cache, CACHE),
    "not committed": (forgets_what_the_cache_holds, CACHE),
    "moved on": (positions_moved_on, FITS),
    "far at once": (reads_far_at_once, FITS),
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


@pytest.mark.parametrize("width", [10, 1024])
@pytest.mark.parametrize("fault", WINDOW_FAULTS)
def test_a_fault_of_the_window_is_found_whatever_its_width(
    fault: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("llama", dtype=torch.bfloat16 if width > 10 else torch.float32)
    plant, found_by = WINDOW_FAULTS[fault]
    plant(monkeypatch, model)
    before = state(model)
    with pytest.raises(cr.InputError, match=rf"LlamaForCausalLM.*{found_by}"):
        chf.attach(model, units={TERMINATOR}, max_length=7, window=width)
    assert state(model) == before
    chf.attach(model, units={TERMINATOR}, max_length=7, window=width, check=False)


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
    "competition": {"competition": 1.5},
    "learned": {"competition": 0.5, "learn_competition": True},
    "between": {"positions": 0.5},
    "memory": {"reader": {9}},
    "tokens": {"max_length": 1},
    "long": {"max_length": 200},
    "window": {"window": 3, "competition": 1.0},
    "wide window": {"window": 1024},
    "window and memory": {"window": 10, "competition": 1.0, "reader": {9}},
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


@pytest.mark.parametrize("name", WINDOWED)
def test_right_models_pass_with_a_window(name: str) -> None:
    model = tiny(name, dtype=torch.float32)
    chf.attach(model, units={TERMINATOR}, max_length=7, window=10, competition=1.0)
    assert chf.adapter_of(model).window == 10


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


def test_an_attached_model_goes_on_from_the_check() -> None:
    ids = random_ids(2, 19)
    assert torch.equal(logits(attached("llama"), ids), logits(attached("llama"), ids))
