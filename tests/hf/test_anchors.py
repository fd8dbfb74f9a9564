"""Anchors: an open unit goes on from one before it, at the distances the model was trained with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

import contentrope as cr
import contentrope.hf as chf
from contentrope.attention.pairs import PairRule
from contentrope.hf import adapter
from tests.hf.models import ARCHITECTURES, TERMINATOR, attached, logits, padded_dtype, random_ids, tiny
from tests.hf.test_cache import check_chunks, check_padding, check_rollback, check_rows, in_chunks, same
from tests.hf.test_causality import check_causal

every = pytest.mark.parametrize("name", ARCHITECTURES)
some = pytest.mark.parametrize("name", ["llama", "mistral, window", "gemma3", "smollm3"])
MIXED = [1, 2]
"""For the two key/value heads of the models here."""


def competing(name: str, anchors: int | list[int] = 1, **settings: Any) -> PreTrainedModel:
    model = attached(name, anchors=anchors, **settings)
    chf.adapter_of(model).set(competition=1.0)
    return model


def two_units(open_tokens: int = 6) -> Tensor:
    ids = random_ids(2, 5 + open_tokens, end_rate=0.0)
    ids[:, 4] = TERMINATOR
    return ids


@every
def test_two_units_are_read_as_the_untouched_model_reads_them(name: str) -> None:
    """Whatever the address: it moves both alike."""
    ids = two_units()
    untouched = logits(tiny(name), ids)
    same(logits(attached(name, anchors=1), ids), untouched)
    assert (logits(attached(name), ids) - untouched).abs().max() > 1e-3, "without anchors they are not"


def test_a_third_unit_is_not_where_positions_have_it() -> None:
    ids = torch.cat((two_units(), two_units()), dim=1)
    assert (logits(attached("llama", anchors=1), ids) - logits(tiny("llama"), ids))[:, 15:].abs().max() > 1e-3


def test_an_anchor_two_units_back_counts_the_tokens_of_both() -> None:
    """With addresses of zero a head sees units as if the first of the two began at zero, and the second there too."""
    ids = torch.cat((two_units(0), two_units(0), random_ids(2, 4, end_rate=0.0)), dim=1)
    model = tiny("llama", num_hidden_layers=1)
    chf.attach(model, units={TERMINATOR}, max_length=9, anchors=[2, 2])
    plain = tiny("llama", num_hidden_layers=1)
    positions = torch.cat((torch.arange(5), torch.arange(5), 10 + torch.arange(4)))
    given = {"position_ids": positions[None].expand(2, -1), "attention_mask": torch.ones_like(ids)}
    expected = logits(plain, ids, use_cache=False, **given)
    same(logits(model, ids, use_cache=False)[:, 10:], expected[:, 10:])


def test_competition_spares_the_units_a_head_goes_on_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a whole text as the core's own rule has it, and with padding."""
    model, ids, found = competing("llama", MIXED), random_ids(2, 25), []
    made = adapter.frame_of
    monkeypatch.setattr(adapter, "frame_of", lambda *args, **kwargs: found.append(made(*args, **kwargs)) or found[-1])
    mask = torch.arange(25) >= torch.tensor([[4], [0]])
    for given in (None, mask):
        logits(model, ids, attention_mask=given, use_cache=False)
        frame = found[-1]
        expected = PairRule.among(frame.units, tuple(MIXED)).spared
        seen = frame.units.valid[:, None].expand(-1, 2, -1)
        for ours, theirs in zip(frame.rule.spared[:2], expected[:2], strict=True):
            assert torch.equal(ours[seen], theirs[seen])
    alone = attached("llama", anchors=MIXED)
    assert (logits(model, ids) - logits(alone, ids)).abs().max() > 1e-3, "competition takes nothing"


@every
def test_chunked_prefill_and_decode_equal_prefill(name: str) -> None:
    check_chunks(competing(name), (6, 1, 4), "dynamic")


@some
@pytest.mark.parametrize(("sizes", "kind"), [((1,), "dynamic"), ((1,), "static"), ((6, 1, 4), "static")], ids=str)
def test_heads_with_anchors_of_their_own_too(name: str, sizes: tuple[int, ...], kind: str) -> None:
    check_chunks(competing(name, MIXED), sizes, kind)


@some
@pytest.mark.parametrize("kind", ["left", "right", "holes"])
def test_padding_in_chunked_prefill(name: str, kind: str) -> None:
    check_padding(competing(name, MIXED, dtype=padded_dtype(name)), kind)


@some
def test_a_rolled_back_cache_is_as_if_nothing_had_been_read(name: str) -> None:
    check_rollback(competing(name, MIXED))


@some
def test_rows_of_a_cache_are_reordered_repeated_and_selected(name: str) -> None:
    check_rows(competing(name, MIXED))


def test_several_rollbacks_and_rows_in_turn() -> None:
    model, ids = attached("llama", anchors=MIXED), random_ids(2, 26)
    expected = logits(model, ids, use_cache=False)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids[:, :20], past_key_values=cache)
    for back, to in ((-3, 18), (-7, 19), (-1, 23)):
        cache.crop(back)
        cache.reorder_cache(torch.tensor([1, 0]))
        cache.reorder_cache(torch.tensor([1, 0]))
        begin = cache.get_seq_length()
        same(in_chunks(model, ids[:, begin:to], (2, 1), cache), expected[:, begin:to])


def test_a_rollback_does_not_count_padding_among_the_tokens_of_a_unit() -> None:
    model, ids = attached("llama", anchors=MIXED), random_ids(2, 22)
    ids[:, 9:13] = 7  # of one unit with what comes before it and after
    mask = (torch.arange(22) >= torch.tensor([[3], [0]])) & (torch.arange(22) != 10)
    positions = (mask.cumsum(1) - 1).clamp(min=0)

    def read(begin: int, end: int, cache: DynamicCache) -> Tensor:
        given = {"attention_mask": mask[:, :end], "position_ids": positions[:, begin:end]}
        return logits(model, ids[:, begin:end], past_key_values=cache, **given)

    expected = read(0, 22, DynamicCache(config=model.config))
    for back in range(1, 9):
        cache = DynamicCache(config=model.config)
        read(0, 20, cache)
        cache.crop(-back)
        same(read(20 - back, 22, cache), expected[:, 20 - back :])


@some
def test_causal(name: str) -> None:
    check_causal(competing(name, MIXED), random_ids(2, 19))


@pytest.mark.parametrize("search", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_generation_with_a_cache_equals_generation_without(search: dict[str, int]) -> None:
    model, ids = attached("llama", anchors=1), random_ids(2, 9)
    given = {"max_new_tokens": 12, "do_sample": False, "attention_mask": torch.ones_like(ids), **search}
    assert torch.equal(model.generate(ids, **given), model.generate(ids, use_cache=False, **given))


def test_gradients_are_those_of_finite_differences() -> None:
    """Anchors carry addresses to where the addresses themselves are not read."""
    model, ids = attached("gpt_neox", anchors=[0, 1, 2, 1]), random_ids(1, 17)  # computes its norms in float64
    weight = model.contentrope.by_turning[0].project.weight

    def loss() -> Tensor:
        return model(ids, use_cache=False).logits.square().sum()

    loss().backward()
    step = 1e-5
    for place in ((0, 0), (3, 5), (7, 31)):
        found = []
        for sign in (1, -1):
            with torch.no_grad():
                weight[place] += sign * step
                found.append(loss())
                weight[place] -= sign * step
        expected = (found[0] - found[1]) / (2 * step)
        torch.testing.assert_close(weight.grad[place], expected, rtol=1e-4, atol=1e-6)


def test_gradient_checkpointing_gives_equal_gradients() -> None:
    ids, found = random_ids(2, 17), []
    for checkpointing in (False, True):
        model = attached("llama", anchors=MIXED).train()
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model(ids, labels=ids, use_cache=False).loss.backward()
        found.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-12)


def test_a_compiled_forward_has_no_graph_break() -> None:
    model, ids = attached("llama", anchors=MIXED), random_ids(2, 17)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    same(compiled(ids, use_cache=False).logits, model(ids, use_cache=False).logits)


def test_files_know_of_anchors(tmp_path: Path) -> None:
    model, ids = attached("llama", anchors=MIXED), random_ids(2, 17)
    chf.save(model, tmp_path)
    again = attached("llama", anchors=MIXED, lively=False)
    chf.load(again, tmp_path)
    assert torch.equal(logits(again, ids), logits(model, ids))
    with pytest.raises(cr.CheckpointError, match="anchors"):
        chf.load(attached("llama", lively=False), tmp_path)


def test_bad_anchors_are_refused() -> None:
    for wrong in ([1, 2, 0], [1, -1], [True, 1], -1):
        with pytest.raises(cr.InputError, match="must be 2 whole numbers, one per key/value head"):
            attached("llama", anchors=wrong)
    with pytest.raises(cr.InputError, match=r"positions 1\.0: anchors continue the local positions"):
        attached("llama", anchors=1, positions="global")
    model = attached("llama", anchors=1)
    with pytest.raises(cr.InputError, match="anchors continue the local positions"):
        chf.set_positions(model, 0.5)
    with pytest.raises(cr.InputError, match="memory units have none"):
        chf.attach(tiny("llama"), units={TERMINATOR}, anchors=1, reader={5})
