"""With a KV cache or without, a model computes the same: in decode, in chunked prefill, in beams, after a rollback."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, StaticCache
from transformers.cache_utils import Cache, DynamicLayer

import contentrope as cr
import contentrope.hf as chf
from contentrope.hf.rotary import LayerRotary
from tests.hf.models import ARCHITECTURES, TERMINATOR, attached, enliven, logits, padded_dtype, random_ids, tiny

every = pytest.mark.parametrize("name", ARCHITECTURES)
some = pytest.mark.parametrize("name", ["llama", "mistral, window", "gemma2", "gemma3", "glm", "gpt_oss", "smollm3"])
TOLERANCE = 2e-5
"""Some models compute norms and softmax in float32, whatever their dtype."""


@torch.no_grad()
def in_chunks(model: PreTrainedModel, ids: Tensor, sizes: tuple[int, ...], cache: Any, **inputs: Any) -> Tensor:
    """Logits of a chunked prefill; the sizes are repeated until all is read."""
    parts, begin = [], 0
    while begin < ids.shape[1]:
        size = sizes[len(parts) % len(sizes)]
        given = {name: value[:, : begin + size] for name, value in inputs.items()}
        out = model(ids[:, begin : begin + size], past_key_values=cache, use_cache=True, **given)
        cache = out.past_key_values
        parts.append(out.logits)
        begin += size
    return torch.cat(parts, dim=1)


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


@every
@pytest.mark.parametrize("sizes", [(1,), (6, 1, 4)], ids=["tokens", "chunks"])
@pytest.mark.parametrize("kind", ["dynamic", "lazy", "static"])
def test_chunked_prefill_and_decode_equal_prefill(name: str, sizes: tuple[int, ...], kind: str) -> None:
    check_chunks(attached(name), sizes, kind)


def check_chunks(model: PreTrainedModel, sizes: tuple[int, ...], kind: str) -> None:
    ids, config = random_ids(2, 29), model.config
    cache = {
        "dynamic": lambda: DynamicCache(config=config),
        "lazy": DynamicCache,
        "static": lambda: StaticCache(config=config, max_cache_len=40),
    }[kind]()
    same(in_chunks(model, ids, sizes, cache), logits(model, ids, use_cache=False))


@some
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
def test_a_caller_may_reuse_its_tensors(name: str, padded: bool) -> None:
    """As loops around graphs do, whose inputs stay where they are."""
    model, ids = attached(name, dtype=padded_dtype(name)), random_ids(2, 20)
    mask = torch.ones(2, 20, dtype=torch.bool)
    if padded:
        mask[1, 4:9] = False
    expected = in_chunks(model, ids, (1,), DynamicCache(config=model.config), attention_mask=mask)
    parts, cache = [], DynamicCache(config=model.config)
    token, seen = torch.zeros_like(ids[:, :1]), torch.zeros_like(mask)
    for t in range(20):
        token.copy_(ids[:, t : t + 1])
        seen[:, 19 - t :] = mask[:, : t + 1]  # the newest token's always at the same place
        with torch.no_grad():
            parts.append(model(token, attention_mask=seen[:, 19 - t :], past_key_values=cache).logits)
    assert torch.equal(torch.cat(parts, dim=1)[mask], expected[mask])


@some
@pytest.mark.parametrize("kind", ["left", "right", "holes"])
def test_padding_in_chunked_prefill(name: str, kind: str) -> None:
    check_padding(attached(name, dtype=padded_dtype(name)), kind)


def check_padding(model: PreTrainedModel, kind: str) -> None:
    ids = random_ids(3, 25)
    columns, rows = torch.arange(25), torch.arange(3)[:, None]
    mask = {"left": columns >= 4 * rows, "right": columns < 25 - 4 * rows, "holes": (columns + rows) % 5 != 4}[kind]
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    expected = logits(model, ids, attention_mask=mask, position_ids=positions)
    parts, cache = [], None
    for begin in range(0, 25, 5):
        with torch.no_grad():
            out = model(
                ids[:, begin : begin + 5],
                attention_mask=mask[:, : begin + 5],
                position_ids=positions[:, begin : begin + 5],
                past_key_values=cache,
                use_cache=True,
            )
        cache = out.past_key_values
        parts.append(out.logits)
    same(torch.cat(parts, dim=1)[mask], expected[mask])


@some
def test_rows_padded_on_the_left_say_what_they_say_alone(name: str) -> None:
    model, ids = attached(name, dtype=padded_dtype(name)), random_ids(1, 14)
    padded = torch.cat((torch.zeros(1, 5, dtype=torch.int64), ids), dim=1)
    mask = torch.arange(19)[None] >= 5
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    same(logits(model, padded, attention_mask=mask, position_ids=positions)[:, 5:], logits(model, ids))


@some
def test_a_rolled_back_cache_is_as_if_nothing_had_been_read(name: str) -> None:
    check_rollback(attached(name))


def check_rollback(model: PreTrainedModel) -> None:
    ids = random_ids(2, 24)
    expected = logits(model, ids, use_cache=False)
    for kept in (1, 4, 8, 9, 13):
        cache = DynamicCache(config=model.config)
        cache.activate_past_recording()
        with torch.no_grad():
            model(torch.cat((ids[:, :kept], random_ids(2, 9, seed=5)), dim=1), past_key_values=cache)
        cache.crop(-9)
        rest, begin = [], kept
        for end in (kept + 1, 18, 19, 20, 24):
            with torch.no_grad():
                rest.append(model(ids[:, begin:end], past_key_values=cache).logits)
            cache.crop(0)  # a window lets go of what it no longer needs only then
            begin = end
        same(torch.cat(rest, dim=1), expected[:, kept:])


@pytest.mark.parametrize("units", ["line", "sentence"])
def test_a_rolled_back_cache_finds_the_text_rule_where_it_was(units: str) -> None:
    """A sentence that ends in a dot inside a rolled-back token must not be half ended."""

    class Words:
        words = ("Mr", ".", " ", "\n", "a", '"', "\n\n", "B")

        def __len__(self) -> int:
            return len(self.words)

        def decode(self, ids: list[int]) -> str:
            return "".join(self.words[i] for i in ids)

    model = tiny("llama")
    chf.attach(model, Words(), units=units, max_length=9)
    enliven(model)
    ids = torch.randint(0, 8, (2, 30), generator=torch.Generator().manual_seed(3))
    expected = logits(model, ids)
    for kept in range(1, 20):
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model(torch.cat((ids[:, :kept], ids[:, 20:25].flip(1)), dim=1), past_key_values=cache)
            cache.crop(-5)
            same(model(ids[:, kept:], past_key_values=cache).logits, expected[:, kept:])


def test_given_ends_stay_given_after_a_rollback() -> None:
    model, ids = attached("llama"), random_ids(1, 20)
    ends = torch.arange(20)[None] % 3 == 1
    expected = logits(model, ids, unit_ends=torch.where(torch.arange(20) < 11, ends, ids == TERMINATOR))
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids[:, :11], unit_ends=ends[:, :11], past_key_values=cache)
        model(ids[:, 11:16], past_key_values=cache)
        cache.crop(-2)
        same(model(ids[:, 14:], past_key_values=cache).logits, expected[:, 14:])


@some
def test_rows_of_a_cache_are_reordered_repeated_and_selected(name: str) -> None:
    check_rows(attached(name))


def check_rows(model: PreTrainedModel) -> None:
    ids = random_ids(3, 20)
    order = torch.tensor([2, 0, 2])
    expected = logits(model, ids, use_cache=False)

    def after(change: Any) -> tuple[Any, Tensor]:
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model(ids[:, :12], past_key_values=cache)
        change(cache)
        return cache, ids[:, 12:]

    for change, rows in (
        (lambda cache: cache.reorder_cache(order), order),
        (lambda cache: cache.batch_select_indices(torch.tensor([1])), torch.tensor([1])),
        (lambda cache: cache.batch_repeat_interleave(2), torch.tensor([0, 0, 1, 1, 2, 2])),
    ):
        cache, rest = after(change)
        same(in_chunks(model, rest[rows], (3, 1), cache), expected[rows, 12:])


def test_a_cache_that_was_reset_begins_anew() -> None:
    model, ids = attached("llama"), random_ids(2, 15)
    cache = StaticCache(config=model.config, max_cache_len=20)
    first = in_chunks(model, ids, (5,), cache)
    cache.reset()
    same(in_chunks(model, ids, (5,), cache), first)


def test_caches_that_do_not_fit_are_refused() -> None:
    model, ids = tiny("llama"), random_ids(2, 9)
    with torch.no_grad():
        cache = model(ids).past_key_values
    chf.attach(model, units={TERMINATOR})
    with pytest.raises(cr.CacheError, match="9 tokens, of which the addresses know 0"):
        model(ids, past_key_values=cache)
    cache = model(ids).past_key_values
    with pytest.raises(cr.CacheError, match="2 rows, input_ids 1"):
        model(ids[:1], past_key_values=cache)


def test_two_texts_with_a_cache_each_do_not_meet() -> None:
    model, ids = attached("llama"), random_ids(2, 16)
    expected = logits(model, ids, use_cache=False)
    caches: list[Any] = [DynamicCache(config=model.config) for _ in range(2)]
    parts: list[list[Tensor]] = [[], []]
    with torch.no_grad():
        for t in range(0, 16, 2):
            for row in range(2):
                span = ids[row : row + 1, t : t + 2]
                parts[row].append(model(span, past_key_values=caches[row]).logits)
    same(torch.cat([torch.cat(p, dim=1) for p in parts]), expected)


def test_a_call_that_fails_leaves_no_half_written_cache_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = attached("llama"), random_ids(1, 9)
    cache = DynamicCache(config=model.config)
    logits(model, ids[:, :4], past_key_values=cache)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(model.model.layers[1].mlp, "forward", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            logits(model, ids[:, 4:], past_key_values=cache)
    assert not chf.adapter_of(model).running
    with pytest.raises(cr.CacheError, match="did not finish"):
        logits(model, ids[:, 4:], past_key_values=cache)
    assert logits(model, ids).shape == (1, 9, 64)


def test_a_call_that_fails_while_keys_are_rotated_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first layer has rotated its keys, the second has not: cropping to where the call began cannot undo that."""
    model, ids = attached("llama"), random_ids(1, 9, end_rate=0.0)
    ids[0, 6] = TERMINATOR
    cache = DynamicCache(config=model.config)
    logits(model, ids[:, :4], past_key_values=cache)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(model.model.layers[0].mlp, "forward", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            logits(model, ids[:, 4:], past_key_values=cache)
    with pytest.raises(cr.CacheError, match="did not finish"):
        cache.crop(-5)
    with pytest.raises(cr.CacheError, match="some of its keys are rotated"):
        logits(model, ids[:, 4:], past_key_values=cache)


@some
@pytest.mark.parametrize("kind", [DynamicCache, StaticCache])
def test_a_token_that_completes_nothing_rotates_no_key(name: str, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = attached(name), random_ids(1, 12, end_rate=0.0)
    ids[0, [3, 9]] = TERMINATOR
    rotated: list[int] = []
    real = LayerRotary.rotate
    monkeypatch.setattr(LayerRotary, "rotate", lambda self, x, r: rotated.append(x.shape[1]) or real(self, x, r))
    room = {"max_cache_len": 12} if kind is StaticCache else {}
    cache = kind(config=model.config, **room)
    logits(model, ids[:, :6], past_key_values=cache)
    for t in range(6, 12):
        rotated.clear()
        logits(model, ids[:, t : t + 1], past_key_values=cache)
        assert bool(rotated) == (t == 9)
        assert max(rotated, default=0) <= 6, "only the keys of the completed unit are rotated"


def test_a_cache_filled_in_inference_mode_goes_on_outside() -> None:
    model, ids = attached("llama"), random_ids(1, 24)
    expected = logits(model, ids)
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(ids[:, :12], past_key_values=cache)
        model(ids[:, 12:13], past_key_values=cache)
    cache.crop(-6)
    same(in_chunks(model, ids[:, 7:], (1,), cache), expected[:, 7:])


@some
def test_rolling_back_costs_one_rounding(name: str) -> None:
    model, ids = attached(name, dtype=torch.bfloat16), random_ids(1, 8, end_rate=0.0)
    ids[0, 7] = TERMINATOR
    caches = []
    for read in (ids[:, :6], ids):
        caches.append(DynamicCache(config=model.config))
        logits(model, read, past_key_values=caches[-1])
    caches[1].crop(-2)
    # Above the first layer, what was read besides moves keys by roundings of its own.
    expected, found = (cache.layers[0] for cache in caches)
    assert torch.equal(found.values, expected.values)
    size = expected.keys.abs().amax(-1, keepdim=True)
    assert bool(((found.keys - expected.keys).abs() <= 2 * torch.finfo(torch.bfloat16).eps * size).all())


def test_a_copied_cache_goes_its_own_way() -> None:
    model, ids = attached("llama"), random_ids(1, 20)
    expected = logits(model, ids)
    cache = DynamicCache(config=model.config)
    logits(model, ids[:, :9], past_key_values=cache)
    other = copy.deepcopy(cache)
    logits(model, random_ids(1, 8, seed=4), past_key_values=other)
    other.crop(-8)
    for one in (cache, other):
        same(in_chunks(model, ids[:, 9:], (2, 1), one), expected[:, 9:])


def test_caches_that_hold_keys_otherwise_are_refused() -> None:
    class Rounded(DynamicLayer):
        """Stands for layers that do not hand back what they were given."""

    model = attached("llama")
    with pytest.raises(cr.CacheError, match=r"Rounded does not allow.*DynamicCache"):
        logits(model, random_ids(1, 5), past_key_values=Cache(layer_class_to_replicate=Rounded))


def test_threads_do_not_meet() -> None:
    model, texts = attached("llama"), [random_ids(1, 12 + n, seed=n) for n in range(4)]
    expected = [logits(model, ids) for ids in texts]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda ids: logits(model, ids), texts * 6))
    for n, seen in enumerate(found):
        assert torch.equal(seen, expected[n % 4])
