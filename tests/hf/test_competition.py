"""Competition between units: what the core's reference says, whichever way attention takes, cached or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel

import contentrope as cr
import contentrope.hf as chf
from contentrope.attention.reference import same_unit_and_visible
from tests.hf.models import ARCHITECTURES, TERMINATOR, attached, enliven, logits, padded_dtype, random_ids, tiny
from tests.hf.test_cache import in_chunks, same
from tests.hf.test_causality import check_causal

every = pytest.mark.parametrize("name", ARCHITECTURES)
NOT_PLAIN = ("gemma2", "gpt_oss")
"""Soft-capped scores; sinks."""


def competing(
    name: str, *, learn: bool = False, lively: bool = True, alpha: float = 0.8, own: str | None = None, **settings: Any
) -> Any:
    model = tiny(name, **settings)
    if own is not None:
        model.set_attn_implementation(own)
    chf.attach(model, units={TERMINATOR}, max_length=7, competition=alpha, learn_competition=learn, check=False)
    return enliven(model) if lively else model


def by_own_attention(model: PreTrainedModel) -> PreTrainedModel:
    adapter = chf.adapter_of(model)
    adapter.layers = {index: layer._replace(plain=False) for index, layer in adapter.layers.items()}
    return model


@every
@pytest.mark.parametrize("learn", [False, True], ids=["fixed", "learned"])
def test_the_way_through_the_models_own_attention_equals_the_reference(name: str, learn: bool) -> None:
    model, ids = competing(name, learn=learn, dtype=padded_dtype(name)), random_ids(2, 23)
    padding = torch.arange(23) >= torch.tensor([[0], [4]])
    chf.adapter_of(model).backend = "reference"
    expected = logits(model, ids), logits(model, ids, attention_mask=padding)
    assert float((expected[0] - logits(attached(name, dtype=padded_dtype(name)), ids)).abs().max()) > 1e-2
    by_own_attention(model)
    same(logits(model, ids), expected[0])
    same(logits(model, ids, attention_mask=padding)[padding], expected[1][padding])


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_caps_and_sinks_are_left_as_they_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written out: capped scores, less alpha log U for earlier units, beside the sink, which is no unit."""
    from contentrope.hf import attention

    # Not every version's SDPA caps scores. The text is shorter than the window.
    model, ids = competing(name, learn=True, own="eager"), random_ids(2, 8)
    calls: list[tuple[Any, ...]] = []
    real = attention._addressed

    def keep(adapter: Any, layer: Any, frame: Any, own: Any, states: Any, *rest: Any) -> Any:
        out = real(adapter, layer, frame, own, states, *rest)
        calls.append((adapter, layer, frame, states, rest, out[0]))
        return out

    monkeypatch.setattr(attention, "_addressed", keep)
    logits(model, ids, use_cache=False)
    assert len(calls) == 2
    for adapter, layer, frame, states, (_, options), found in calls:
        rotary, alpha = adapter.rotaries[layer.rotary], frame.competition_in(layer.layer_idx)
        query, key, value = states
        query = rotary.rotate(query.transpose(1, 2), frame.rotations.queries[layer.rotary]).transpose(1, 2)
        addressed = rotary.rotate(key.transpose(1, 2), frame.rotations.span.rotated.rotations[layer.rotary]).transpose(
            1, 2
        )
        keys, addressed, value = (x.repeat_interleave(2, dim=1) for x in (key, addressed, value))
        same_unit, visible = same_unit_and_visible(frame.rule)
        reads_local = (same_unit & ~frame.rule.closes[..., None])[:, None]
        scores = options["scaling"] * torch.where(reads_local, query @ keys.mT, query @ addressed.mT)
        if cap := options.get("softcap"):
            scores = cap * torch.tanh(scores / cap)
        completed = frame.rule.query_unit.clamp(min=1).log()[:, None, :, None]
        scores = scores - torch.where(same_unit[:, None], 0.0, alpha[:, None, None] * completed)
        scores = scores.masked_fill(~visible[:, None], -torch.inf)
        if (sinks := options.get("s_aux")) is not None:
            scores = torch.cat((scores, sinks[:, None, None].expand(2, -1, 8, 1)), dim=-1)
        expected = scores.softmax(-1)[..., :8] @ value
        same(found, expected.transpose(1, 2))


@every
@pytest.mark.parametrize("learn", [False, True], ids=["fixed", "learned"])
@pytest.mark.parametrize("sizes", [(1,), (6, 1, 4)], ids=["tokens", "chunks"])
def test_chunked_prefill_and_decode_equal_prefill(name: str, learn: bool, sizes: tuple[int, ...]) -> None:
    model, ids = competing(name, learn=learn), random_ids(2, 29)
    expected = logits(model, ids, use_cache=False)
    same(in_chunks(model, ids, sizes, DynamicCache(config=model.config)), expected)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss"])
@pytest.mark.parametrize("learn", [False, True], ids=["fixed", "learned"])
def test_padded_prompts_and_static_caches(name: str, learn: bool) -> None:
    model, ids = competing(name, learn=learn), random_ids(2, 14)
    mask = torch.arange(14) >= torch.tensor([[0], [5]])
    options: dict[str, Any] = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    together = model.generate(ids, attention_mask=mask, cache_implementation="static", **options)
    for row, begin in ((0, 0), (1, 5)):
        alone = ids[row : row + 1, begin:]
        found = model.generate(alone, attention_mask=torch.ones_like(alone), use_cache=False, **options)
        assert torch.equal(together[row, 14:], found[0, 14 - begin :])


@every
def test_exponents_are_learned(name: str) -> None:
    """Also from zero, where the value is the untouched model's to the last bit; and only where there are positions."""
    model, ids = tiny(name), random_ids(2, 23)
    expected = logits(model, ids)
    chf.attach(model, units={TERMINATOR}, positions="global", max_length=7, learn_competition=True)
    found = model(ids).logits
    assert torch.equal(found.detach(), expected)
    found.square().sum().backward()
    gradient = model.contentrope.exponents.grad
    for index, layer in chf.adapter_of(model).layers.items():
        assert bool(gradient[index].any()) == (layer.rotary is not None)


@pytest.mark.parametrize("name", ["llama", *NOT_PLAIN])
@pytest.mark.parametrize("own", [False, True], ids=["backend", "own attention"])
def test_the_gradient_of_exponents_is_the_slope(name: str, own: bool) -> None:
    model, ids = competing(name, learn=True), random_ids(2, 17)
    if own:
        by_own_attention(model)
    exponents = model.contentrope.exponents
    model(ids).logits.square().sum().backward()
    direction = torch.randn(exponents.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = []
    for step in (1e-3, -1e-3):
        with torch.no_grad():
            exponents.add_(step * direction)
            values.append(logits(model, ids).square().sum())
            exponents.sub_(step * direction)
    slope = (values[0] - values[1]) / 2e-3
    torch.testing.assert_close((exponents.grad * direction).sum(), slope, rtol=0.01, atol=2e-3)


@pytest.mark.parametrize("name", ["llama", "mistral, window", *NOT_PLAIN])
def test_later_tokens_change_nothing(name: str) -> None:
    check_causal(competing(name, learn=True), random_ids(2, 19))


def test_checkpointing_gives_equal_gradients() -> None:
    model = competing("llama", learn=True).train()
    ids, found = random_ids(2, 17), []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        model(ids, use_cache=False).logits.square().sum().backward()
        found.append(model.contentrope.exponents.grad.clone())
    same(found[0], found[1])


def test_competition_is_saved_and_taken_over(tmp_path: Path) -> None:
    model, ids = competing("llama", alpha=0.75), random_ids(2, 19)
    chf.save(model, tmp_path / "fixed")
    other = competing("llama", alpha=0.0, lively=False)
    chf.load(other, tmp_path / "fixed")
    assert chf.adapter_of(other).competition == 0.75
    assert torch.equal(logits(other, ids), logits(model, ids))
    learned = competing("llama", learn=True)
    chf.save(learned, tmp_path / "learned")
    with pytest.raises(cr.CheckpointError, match="learn_competition: False here, True"):
        chf.load(other, tmp_path / "learned")
    fresh = competing("llama", learn=True, lively=False)
    chf.load(fresh, tmp_path / "learned")
    assert torch.equal(logits(fresh, ids), logits(learned, ids))


@pytest.mark.parametrize("wrong", [float("nan"), "much", True], ids=str)
def test_an_exponent_is_a_number(wrong: Any) -> None:
    with pytest.raises(cr.InputError, match=f"competition is {wrong!r}"):
        chf.attach(tiny("llama"), units={TERMINATOR}, competition=wrong)
