"""Attention along reflections against explicit products of Householder matrices, in float64."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import contentrope as cr
from contentrope.attention import householder
from contentrope.attention.householder import path_attention, rewritten_keys
from contentrope.schemes.path import predecessors
from tests.support import in_chunks, lively_model, random_ids
from tests.support.decoder import Scores, dense_logits, padding_everywhere, read_dense
from tests.support.sizes import counting_kept, largest_tensor

CLOSE = {"rtol": 0, "atol": 1e-10}


def matrix_scores(query: Tensor, key: Tensor, reflector: Tensor) -> Tensor:
    """(batch, heads, seq, seq): q_i H_i ... H_(j+1) k_j / sqrt(head_dim), matrix by matrix."""
    seq, size = query.shape[2:]
    identity = torch.eye(size, dtype=query.dtype)
    matrices = identity - reflector[..., :, None] * reflector[..., None, :]
    rows = []
    for i in range(seq):
        product, scores = identity.expand_as(matrices[:, :, 0]), [torch.zeros_like(query[:, :, 0, 0])] * seq
        for j in range(i, -1, -1):
            row = query[:, :, i, None] @ product
            scores[j] = (row @ key[:, :, j, :, None])[..., 0, 0] / math.sqrt(size)
            product = product @ matrices[:, :, j]
        rows.append(torch.stack(scores, dim=-1))
    return torch.stack(rows, dim=-2)


def reflectors_by_hand(network: Any, hidden: Tensor, valid: Tensor, heads: int) -> Tensor:
    """(batch, heads, seq, head_dim): sqrt(beta) w of every token, from a list of the tokens that are there."""
    mapped = (hidden @ network.reduce.weight.T @ network.expand.weight.T).unflatten(-1, (heads, -1))
    beta = 2 / (1 + torch.exp(-(hidden @ network.strength.weight.T + network.strength.bias)))
    out = torch.zeros_like(mapped)
    for row in range(len(hidden)):
        there = valid[row].nonzero().flatten().tolist()
        for place, column in enumerate(there):
            mixed = network.taps[2, :, 0] * mapped[row, column]
            for back in (1, 2):
                if place >= back:
                    mixed = mixed + network.taps[2 - back, :, 0] * mapped[row, there[place - back]]
            curved = mixed / (1 + torch.exp(-mixed))
            unit = curved / curved.square().sum(-1, keepdim=True).sqrt()
            out[row, column] = beta[row, column].sqrt()[:, None] * unit
    return out.transpose(1, 2)


def scores_of(model: cr.Transformer, valid: Tensor) -> Scores:
    config = model.config

    def scores(layer: int, hidden: Tensor, query: Tensor, key: Tensor) -> Tensor:
        by_hand = reflectors_by_hand(model.scheme.networks[layer], hidden, valid, config.key_heads)
        return matrix_scores(query, key, by_hand.repeat_interleave(config.group, dim=1))

    return scores


@pytest.mark.parametrize("settings", [{}, {"heads": 4, "kv_heads": 2}, {"kv_heads": 1}], ids=["", "grouped", "shared"])
@pytest.mark.parametrize("seq", [1, 2, 23])
def test_logits(settings: dict[str, Any], seq: int) -> None:
    model, ids = lively_model("path", **settings), random_ids(2, seq)
    expected = dense_logits(model, ids, scores_of(model, torch.ones_like(ids).bool()))
    torch.testing.assert_close(model(ids), expected, **CLOSE)


def test_padding_takes_no_part() -> None:
    model, ids, valid = lively_model("path"), random_ids(3, 21), padding_everywhere(21)
    expected = dense_logits(model, ids, scores_of(model, valid), valid)
    torch.testing.assert_close(model(ids, valid=valid)[valid], expected[valid], **CLOSE)


def test_logits_beyond_a_chunk() -> None:
    model, ids = lively_model("path", layers=1), random_ids(1, 90)
    expected = dense_logits(model, ids, scores_of(model, torch.ones_like(ids).bool()))
    torch.testing.assert_close(model(ids), expected, **CLOSE)


# --- the closed form -------------------------------------------------------------------------------------------


def inputs(seq: int, *, heads: int = 2, kv_heads: int = 1, seed: int = 1, beta: float | None = None) -> list[Tensor]:
    """Query, key, value, reflector; the squared length of the reflectors is ``beta``, or anything in 0..2."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value, reflector = (
        torch.randn(2, count, seq, 6, dtype=torch.float64, generator=generator)
        for count in (heads, kv_heads, kv_heads, kv_heads)
    )
    drawn = 2 * torch.rand(2, kv_heads, seq, 1, dtype=torch.float64, generator=generator)
    length = drawn.sqrt() if beta is None else math.sqrt(beta)
    return [x.requires_grad_() for x in (query, key, value, F.normalize(reflector, dim=-1) * length)]


def matrix_attention(query: Tensor, key: Tensor, value: Tensor, reflector: Tensor) -> Tensor:
    group = query.shape[1] // key.shape[1]
    key, value, reflector = (x.repeat_interleave(group, dim=1) for x in (key, value, reflector))
    return read_dense(matrix_scores(query, key, reflector), value)


def small_chunks(monkeypatch: pytest.MonkeyPatch, chunk: int, segment: int) -> None:
    monkeypatch.setattr(householder, "CHUNK", chunk)
    monkeypatch.setattr(householder, "SEGMENT", segment)


@pytest.mark.parametrize(
    ("chunk", "segment"), [(64, 1024), (4, 1024), (1, 1024), (4, 8)], ids=["one", "chunks", "tokens", "segments"]
)
def test_output_and_gradients(chunk: int, segment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch, chunk, segment)
    given_tensors = inputs(21)
    found, expected = path_attention(*given_tensors)[0], matrix_attention(*given_tensors)
    torch.testing.assert_close(found, expected, **CLOSE)
    weight = torch.randn_like(found)
    ours, theirs = (torch.autograd.grad((out * weight).sum(), given_tensors) for out in (found, expected))
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our, their, **CLOSE)
        assert our.abs().max() > 1e-3


@pytest.mark.parametrize("chunk", [64, 2])
def test_gradcheck(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch, chunk, 1024)
    assert torch.autograd.gradcheck(path_attention, inputs(5))


@given(st.integers(1, 20), st.integers(0, 20), st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 3, 64]))
def test_a_sequence_read_in_two_parts_is_the_whole(seq: int, cut: int, seed: int, chunk: int) -> None:
    query, key, value, reflector = (x.detach() for x in inputs(seq, seed=seed))
    cut = min(cut, seq)
    with pytest.MonkeyPatch.context() as patch:
        small_chunks(patch, chunk, 2 * chunk)
        whole, keys = path_attention(query, key, value, reflector)
        seen = rewritten_keys(key[:, :, :cut], reflector[:, :, :cut]) if cut else None
        if cut < seq:
            rest = (x[:, :, cut:] for x in (query, key))
            found, seen = path_attention(*rest, value, reflector[:, :, cut:], seen)
            torch.testing.assert_close(found, whole[:, :, cut:], **CLOSE)
    assert seen is not None
    torch.testing.assert_close(seen, keys, **CLOSE)


def test_rewritten_keys_are_products_of_matrices() -> None:
    _, key, _, reflector = (x.detach() for x in inputs(17))
    for j in range(17):
        expected = key[:, :, j, :, None]
        for t in range(j + 1, 17):
            r = reflector[:, :, t, :, None]
            expected = expected - r @ (r.mT @ expected)
        torch.testing.assert_close(rewritten_keys(key, reflector)[:, :, j], expected[..., 0], **CLOSE)


def test_without_reflectors_it_is_plain_attention() -> None:
    query, key, value, reflector = inputs(30, heads=2, kv_heads=2)
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(path_attention(query, key, value, 0 * reflector)[0], expected, **CLOSE)


@pytest.mark.parametrize(("beta", "kept"), [(2.0, True), (1.0, False)])
def test_full_reflections_keep_the_length_of_keys(beta: float, kept: bool) -> None:
    """Also in float32 over thousands of tokens: nothing grows."""
    _, key, _, reflector = (x.detach().float() for x in inputs(3000, beta=beta))
    ratio = rewritten_keys(key, reflector).norm(dim=-1) / key.norm(dim=-1)
    assert bool(((ratio - 1).abs() < 1e-3).all()) is kept


def test_bfloat16_inputs_are_folded_in_float32() -> None:
    rounded = [x.detach().bfloat16() for x in inputs(150)]
    found, keys = path_attention(*rounded)
    assert (found.dtype, keys.dtype) == (torch.bfloat16, torch.float32)
    exact, exact_keys = path_attention(*(x.double() for x in rounded))
    torch.testing.assert_close(found.double(), exact, rtol=0.01, atol=0.01)
    torch.testing.assert_close(keys.double(), exact_keys, rtol=0, atol=1e-4)


def test_autocast_does_not_reach_the_closed_form() -> None:
    given_tensors = [x.detach().float() for x in inputs(100)]
    with torch.autocast("cpu", torch.bfloat16):
        found, seen = path_attention(*given_tensors)[0], rewritten_keys(given_tensors[1], given_tensors[3])
    assert torch.equal(found, path_attention(*given_tensors)[0])
    assert torch.equal(seen, rewritten_keys(given_tensors[1], given_tensors[3]))


def test_no_tensor_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest is a chunk's scores or a segment's own; the backward pass is kept one carried key per segment."""
    small_chunks(monkeypatch, 16, 128)
    seq = 1600
    given_tensors = inputs(seq, heads=1)

    def train() -> None:
        with counting_kept() as kept:
            out, _ = path_attention(*given_tensors)
        assert sum(kept.values()) < 8 * 2 * seq * seq / 4
        out.sum().backward()

    assert largest_tensor(train) <= 2 * 16 * seq


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*lru_cache.*")
def test_several_segments_compile_into_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch, 8, 16)
    torch._dynamo.reset()
    model, ids = lively_model("path", layers=1), random_ids(2, 40)
    found, expected = torch.compile(model, fullgraph=True, backend="aot_eager")(ids), model(ids)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    ours, theirs = (torch.autograd.grad(x.square().sum(), list(model.parameters())) for x in (found, expected))
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our, their, rtol=1e-9, atol=1e-9)


def test_later_tokens_change_nothing_across_chunks_and_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit, at, before and after the seams."""
    small_chunks(monkeypatch, 8, 16)
    given_tensors = [x.detach().float() for x in inputs(45)]
    other = [x.detach().float() for x in inputs(45, seed=2)]
    expected = path_attention(*given_tensors)[0]
    for t in (0, 6, 7, 8, 15, 16, 31, 40):
        changed = [
            torch.cat((a[:, :, : t + 1], b[:, :, t + 1 :]), dim=2) for a, b in zip(given_tensors, other, strict=True)
        ]
        found = path_attention(*changed)[0]
        assert torch.equal(found[:, :, : t + 1], expected[:, :, : t + 1])
        assert not torch.equal(found, expected)


# --- reflectors ------------------------------------------------------------------------------------------------


def test_reflectors_have_the_squared_length_beta() -> None:
    model, hidden = lively_model("path"), torch.randn(2, 9, 24, dtype=torch.float64)
    network = model.scheme.networks[0]
    features = network.features(hidden)
    reflector = network.reflectors(hidden, [features] * 3, torch.float64)
    beta = 2 * torch.sigmoid(network.strength(hidden)).mT
    torch.testing.assert_close(reflector.square().sum(-1), beta)


@pytest.mark.parametrize("bias", [-300.0, 300.0])
def test_gradients_stay_finite_where_beta_is_at_its_end(bias: float) -> None:
    model, ids = lively_model("path", dtype=torch.float32), random_ids(2, 20)
    for network in model.scheme.networks:
        torch.nn.init.constant_(network.strength.bias, bias)
    model(ids).square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(1, 3))
def test_predecessors_are_the_last_tokens_there_are(valid: list[bool], count: int) -> None:
    found = predecessors(torch.tensor([valid]), count)[0].tolist()
    for column, columns in enumerate(found):
        before = [c for c in range(column) if valid[c]]
        assert columns == ([-1] * count + before)[-count:]


# --- the cache -------------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1.0, 0.7, 0.3]),
    st.sampled_from([2, 5, 64]),
)
def test_any_chunking_streams(sizes: list[int], seed: int, share: float, chunk: int) -> None:
    model, ids = lively_model("path", layers=2), random_ids(2, 18, seed=seed)
    valid = torch.rand(2, 18, generator=torch.Generator().manual_seed(seed)) < share
    masks = {"valid": valid} if share < 1 else {}
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        small_chunks(patch, chunk, 2 * chunk)
        torch.testing.assert_close(in_chunks(model, ids, sizes, **masks), model(ids, **masks), rtol=0, atol=1e-12)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 8)), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_any_rollbacks_leave_what_a_fresh_cache_holds(steps: list[tuple[int, int]], seed: int) -> None:
    """Per step: read some tokens, then forget some. What is stored of a column never changes."""
    model, generator = lively_model("path", layers=2), torch.Generator().manual_seed(seed)
    cache, text = model.new_cache(2, max_tokens=4), torch.zeros(2, 0, dtype=torch.int64)
    for size, forgotten in steps:
        text = torch.cat((text, torch.randint(0, 11, (2, size), generator=generator)), dim=1)
        found = model(text[:, -size:], cache=cache)
        torch.testing.assert_close(found, model(text)[:, -size:], rtol=0, atol=1e-12)
        stored = copy.deepcopy(cache.extras)
        text = text[:, : max(text.shape[1] - forgotten, 0)]
        cache.truncate(text.shape[1])
        for name, before in stored.items():
            kept = slice(0, text.shape[1])
            assert torch.equal(cache.extras[name][:, :, kept], before[:, :, kept])


def test_keys_are_stored_as_they_are_and_as_the_next_token_sees_them() -> None:
    model, ids = lively_model("path", layers=1), random_ids(2, 12)
    whole, part = model.new_cache(2), model.new_cache(2)
    model(ids, cache=whole)
    for token in ids[:, :9].split(1, dim=1):
        model(token, cache=part)
    torch.testing.assert_close(part.keys[0][:, :, :9], whole.keys[0][:, :, :9], rtol=0, atol=1e-12)
    reflector = part.extras["reflector", 0][:, :, :9]
    torch.testing.assert_close(part.derived[0], rewritten_keys(part.keys[0][:, :, :9], reflector), **CLOSE)
    assert not torch.allclose(part.derived[0], whole.derived[0][:, :, :9])
    part.truncate(5)
    assert not part.derived
