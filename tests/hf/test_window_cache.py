"""The near window with a KV cache, in generation and in training: the same as one forward pass without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache

import contentrope.hf as chf
from contentrope.hf.rotary import LayerRotary
from tests.hf.models import TERMINATOR, WINDOWED, attached, enliven, logits, padded_dtype, random_ids, tiny
from tests.hf.test_cache import check_chunks, check_padding, check_rollback, check_rows, in_chunks, same
from tests.hf.test_generate import generated
from tests.hf.test_memory import MARKER
from tests.hf.test_training import check_equal, gradients
from tests.hf.test_window import PLAIN, W, windowed

every = pytest.mark.parametrize("name", WINDOWED)
some = pytest.mark.parametrize("name", ["llama", "mistral, window", "gemma2", "gemma3", "glm", "gpt_oss", "smollm3"])
WAYS: list[tuple[tuple[int, ...], str]] = [((1,), "dynamic"), ((6, 1, 4), "dynamic"), ((6, 1, 4), "static")]
OTHER_WAYS: list[tuple[tuple[int, ...], str]] = [
    ((1,), "static"),
    ((1,), "lazy"),
    ((6, 1, 4), "lazy"),
    ((11,), "dynamic"),
]


@every
@pytest.mark.parametrize(("sizes", "kind"), WAYS, ids=str)
def test_chunked_prefill_and_decode_equal_prefill(name: str, sizes: tuple[int, ...], kind: str) -> None:
    check_chunks(windowed(name), sizes, kind)


@some
@pytest.mark.parametrize(("sizes", "kind"), OTHER_WAYS, ids=str)
def test_other_ways_too(name: str, sizes: tuple[int, ...], kind: str) -> None:
    check_chunks(windowed(name), sizes, kind)


@pytest.mark.parametrize("window", [1, 3, 7, 17, 28])
def test_whatever_the_width(window: int) -> None:
    model = attached("llama", window=window, competition=1.0)
    for sizes in ((1,), (6, 1, 4)):
        check_chunks(model, sizes, "dynamic")
    check_rollback(model)


@every
def test_padding_on_the_left_in_chunked_prefill(name: str) -> None:
    check_padding(windowed(name, dtype=padded_dtype(name)), "left")


@some
@pytest.mark.parametrize("kind", ["right", "holes"])
def test_other_padding_in_chunked_prefill(name: str, kind: str) -> None:
    check_padding(windowed(name, dtype=padded_dtype(name)), kind)


@some
def test_a_rolled_back_cache_is_as_if_nothing_had_been_read(name: str) -> None:
    check_rollback(windowed(name))


@some
def test_rows_of_a_cache_are_reordered_repeated_and_selected(name: str) -> None:
    check_rows(windowed(name))


def test_several_rollbacks_and_rows_in_turn() -> None:
    model, ids = windowed("llama"), random_ids(2, 40)
    expected = logits(model, ids, use_cache=False)
    cache = DynamicCache(config=model.config)
    logits(model, ids[:, :30], past_key_values=cache)
    for back, to in ((-3, 29), (-17, 34), (-1, 36), (-30, 40)):
        cache.crop(back)
        cache.reorder_cache(torch.tensor([1, 0]))
        cache.reorder_cache(torch.tensor([1, 0]))
        begin = cache.get_seq_length()
        same(in_chunks(model, ids[:, begin:to], (2, 1), cache), expected[:, begin:to])


def test_a_rollback_does_not_count_padding() -> None:
    model, ids = windowed("llama"), random_ids(2, 32)
    ids[:, 9:13] = 7  # of one unit with what comes before it and after
    mask = (torch.arange(32) >= torch.tensor([[3], [0]])) & (torch.arange(32) != 10)
    positions = (mask.cumsum(1) - 1).clamp(min=0)

    def read(begin: int, end: int, cache: DynamicCache) -> Tensor:
        given = {"attention_mask": mask[:, :end], "position_ids": positions[:, begin:end]}
        return logits(model, ids[:, begin:end], past_key_values=cache, **given)

    expected = read(0, 32, DynamicCache(config=model.config))
    for back in range(1, 19, 3):
        cache = DynamicCache(config=model.config)
        read(0, 30, cache)
        cache.crop(-back)
        same(read(30 - back, 32, cache), expected[:, 30 - back :])


@pytest.mark.parametrize("name", ["llama", "mistral, window", "gemma2", "gemma3", "gpt_oss", "gemma4, shared keys"])
def test_memory_units_and_their_readers(name: str) -> None:
    model = tiny(name)
    given = {"window": W, "competition": 0.5, "reader": (MARKER,), "max_length": 7, "check": False}
    enliven(chf.attach(model, units={TERMINATOR}, learn_competition=True, **given))
    ids = random_ids(2, 36, end_rate=0.3)
    ids[ids == MARKER] = 6
    ids[0, 11], ids[1, 4] = MARKER, MARKER
    expected = logits(model, ids, use_cache=False)
    for sizes in ((1,), (6, 1, 4)):
        for cache in (DynamicCache(config=model.config), StaticCache(config=model.config, max_cache_len=40)):
            same(in_chunks(model, ids, sizes, cache), expected)
    if name != "llama":
        return
    for kept in (3, 9, 14, 25):
        cache = DynamicCache(config=model.config)
        logits(model, torch.cat((ids[:, :kept], ids[:, 9:20]), dim=1), past_key_values=cache)
        cache.crop(-11)
        same(in_chunks(model, ids[:, kept:], (2, 1), cache), expected[:, kept:])


def test_given_ends_with_a_window() -> None:
    model, ids = windowed("llama"), random_ids(1, 30)
    ends = torch.arange(30)[None] % 3 == 1
    expected = logits(model, ids, unit_ends=ends)
    assert not torch.equal(expected, logits(model, ids))
    cache = DynamicCache(config=model.config)
    parts = [
        logits(model, ids[:, t : t + 5], unit_ends=ends[:, t : t + 5], past_key_values=cache) for t in range(0, 30, 5)
    ]
    same(torch.cat(parts, dim=1), expected)


@pytest.mark.parametrize("kind", [DynamicCache, StaticCache])
def test_a_token_that_moves_no_window_rotates_no_key(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = windowed("llama"), PLAIN.ids
    leaving = {11: 3, 17: 7, 21: 1, 26: 6, 28: 4}  # where a unit begins, and how many tokens are then too far back
    rotated: list[tuple[int, int]] = []
    real = LayerRotary.rotate
    monkeypatch.setattr(
        LayerRotary, "rotate", lambda self, x, r: rotated.append((x.shape[1], x.shape[2])) or real(self, x, r)
    )
    room = {"max_cache_len": 40} if kind is StaticCache else {}
    cache = kind(config=model.config, **room)
    for t in range(ids.shape[1]):
        rotated.clear()
        logits(model, ids[:, t : t + 1], past_key_values=cache)
        assert not rotated or t >= W, "all is near"
        keys = {columns for columns, heads in rotated if heads == 2}
        assert keys == ({leaving[t]} if t in leaving else set())


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"prompt_lookup_num_tokens": 3}], ids=str)
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_generation_with_a_cache_equals_generation_without(name: str, options: dict[str, Any]) -> None:
    model, ids = windowed(name), random_ids(1 if "prompt_lookup_num_tokens" in options else 2, 14)
    ids[0, 8:] = ids[0, 1:7]
    beams = {key: value for key, value in options.items() if key == "num_beams"}
    assert torch.equal(generated(model, ids, **options), generated(model, ids, use_cache=False, **beams))


@pytest.mark.parametrize("way", [{}, {"cache_implementation": "static"}], ids=["", "static"])
def test_prompts_padded_on_the_left(way: dict[str, Any]) -> None:
    model, ids = windowed("llama"), random_ids(2, 18)
    mask = torch.arange(18) >= torch.tensor([[0], [9]])
    together = generated(model, torch.where(mask, ids, 0), attention_mask=mask.long(), **way)
    for row, begin in enumerate((0, 9)):
        alone = generated(model, ids[row : row + 1, begin:], use_cache=False)
        assert torch.equal(together[row, 18:], alone[0, 18 - begin :])


def test_an_assistant_is_corrected() -> None:
    model, ids = windowed("llama"), random_ids(1, 14)
    for assistant in (windowed("llama", seed=5), attached("llama", window=W)):
        found = generated(model, ids, assistant_model=assistant, num_assistant_tokens=4)
        assert torch.equal(found, generated(model, ids, use_cache=False))


def test_a_cache_filled_in_inference_mode_goes_on_outside() -> None:
    model, ids = windowed("llama"), random_ids(1, 30)
    expected = logits(model, ids)
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(ids[:, :20], past_key_values=cache)
        model(ids[:, 20:21], past_key_values=cache)
    cache.crop(-9)
    same(in_chunks(model, ids[:, 12:], (1,), cache), expected[:, 12:])


# --- training ------------------------------------------------------------------------------------------------------


def test_gradients_are_those_of_finite_differences() -> None:
    model, ids = windowed("gpt_neox"), random_ids(1, 29)  # computes its norms in float64
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


@pytest.mark.parametrize("name", ["llama", "mistral, window", "gemma2"])
def test_zero_addresses_learn_from_what_is_far(name: str) -> None:
    model, weight = attached(name, window=W, lively=False), "contentrope.by_turning.0.project.weight"
    assert not bool(gradients(model, random_ids(2, W))[weight].any())
    assert bool(gradients(model, random_ids(2, 29))[weight].any())


@some
def test_checkpointing_gives_equal_gradients(name: str) -> None:
    """Two texts at once: a state kept in a shared place would be the second one's when the first is computed again."""
    model = windowed(name).train()
    texts = random_ids(2, 29, seed=1), random_ids(2, 29, seed=2)
    expected = gradients(model, *texts, use_cache=False)
    model.gradient_checkpointing_enable()
    check_equal(gradients(model, *texts, use_cache=False), expected, 1e-8)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*lru_cache.*")
@pytest.mark.parametrize("name", ["llama", "mistral, window"])
def test_one_compiled_graph_serves_all_boundaries(name: str) -> None:
    torch._dynamo.reset()
    model = windowed(name, num_hidden_layers=1)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    compiled(random_ids(2, 29), use_cache=False)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed, end_rate in ((1, 0.5), (2, 0.0)):
            ids = random_ids(2, 29, seed=seed, end_rate=end_rate)
            found, exact = (m(ids, use_cache=False).logits for m in (compiled, model))
            torch.testing.assert_close(found, exact, rtol=0, atol=1e-10)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*lru_cache.*")
@pytest.mark.parametrize("rows", [1, 2])
def test_a_cache_made_by_a_compiled_graph_goes_on(rows: int) -> None:
    torch._dynamo.reset()
    model, ids = windowed("llama", num_hidden_layers=1), random_ids(rows, 36)
    expected = logits(model, ids)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        first = compiled(ids[:, :25])
        rest = in_chunks(model, ids[:, 25:], (4, 1), first.past_key_values)
    same(torch.cat((first.logits, rest), dim=1), expected)
