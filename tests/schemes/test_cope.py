"""Contextual positions against their definition pair by pair, in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import contentrope as cr
from contentrope.attention import contextual
from contentrope.attention.contextual import contextual_attention, contextual_positions, interpolated
from tests.support import in_chunks, lively_model, random_ids
from tests.support.decoder import Scores, dense_logits, padding_everywhere, read_dense
from tests.support.sizes import counting_kept, largest_tensor

CLOSE = {"rtol": 0, "atol": 1e-10}


def pair_scores(query: Tensor, key: Tensor, embeddings: Tensor, valid: Tensor | None = None) -> Tensor:
    """(batch, heads, queries, keys); the queries are the last of the keys. One pair after another."""
    queries, keys, last = query.shape[2], key.shape[2], len(embeddings) - 1
    valid = torch.ones(len(query), keys).bool() if valid is None else valid
    rows = []
    for i in range(queries):
        column, q = keys - queries + i, query[:, :, i]
        position = torch.zeros_like(q[..., 0])
        scores = [torch.zeros_like(position)] * keys
        for j in range(column, -1, -1):
            logit = (q * key[:, :, j]).sum(-1) / math.sqrt(q.shape[-1])
            position = position + torch.sigmoid(logit) * valid[:, j, None]
            at = position.clamp(max=last)
            low, high = at.floor().long(), at.ceil().long()
            part = at - low
            by_low, by_high = ((q * embeddings[whole]).sum(-1) for whole in (low, high))
            scores[j] = logit + (1 - part) * by_low + part * by_high
        rows.append(torch.stack(scores, dim=-1))
    return torch.stack(rows, dim=-2)


def scores_of(model: cr.Transformer, valid: Tensor | None = None) -> Scores:
    embeddings = model.scheme.embeddings
    return lambda layer, hidden, query, key: pair_scores(query, key, embeddings[layer], valid)


@pytest.mark.parametrize(
    "settings",
    [{}, {"options": {"positions": 4}}, {"options": {"positions": 1}}, {"heads": 4, "kv_heads": 2}],
    ids=["defaults", "four positions", "one position", "grouped"],
)
def test_logits(settings: dict[str, Any]) -> None:
    model, ids = lively_model("cope", **settings), random_ids(2, 25)
    torch.testing.assert_close(model(ids), dense_logits(model, ids, scores_of(model)), **CLOSE)


def test_padding_passes_no_gate() -> None:
    model, ids, valid = lively_model("cope"), random_ids(3, 21), padding_everywhere(21)
    expected = dense_logits(model, ids, scores_of(model, valid), valid)
    torch.testing.assert_close(model(ids, valid=valid)[valid], expected[valid], **CLOSE)


def test_four_positions_are_used_up_and_sixty_four_are_not() -> None:
    """Else clamping, or positions below it, would not have been compared above."""
    logits, visible = torch.randn(3, 25, 25, dtype=torch.float64), torch.ones(25, 25).tril().bool()
    assert contextual_positions(logits, visible, last=3).max() == 3
    assert 3 < contextual_positions(logits, visible, last=63).max() < 63


def inputs(queries: int, keys: int, *, heads: int = 2, kv_heads: int = 1, positions: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    sizes = [(2, heads, queries, 6), (2, kv_heads, keys, 6), (2, kv_heads, keys, 6), (positions, 6)]
    return [torch.randn(size, dtype=torch.float64, generator=generator).requires_grad_() for size in sizes]


def pair_attention(query: Tensor, key: Tensor, value: Tensor, embeddings: Tensor) -> Tensor:
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
    return read_dense(pair_scores(query, key, embeddings), value)


@pytest.mark.parametrize(("queries", "keys", "tile"), [(13, 13, 256), (40, 40, 16), (35, 50, 16)])
def test_output_and_gradients_in_one_tile_and_in_several(
    queries: int, keys: int, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contextual, "TILE", tile)
    given_tensors = inputs(queries, keys)
    found, expected = contextual_attention(*given_tensors), pair_attention(*given_tensors)
    torch.testing.assert_close(found, expected, **CLOSE)
    weight = torch.randn_like(found)
    ours, theirs = (torch.autograd.grad((out * weight).sum(), given_tensors) for out in (found, expected))
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our, their, **CLOSE)
        assert our.abs().max() > 1e-3


def test_gradcheck() -> None:
    assert torch.autograd.gradcheck(contextual_attention, inputs(5, 7))


def test_a_fresh_model_has_no_positions() -> None:
    """As in the paper's code; the first step gives the embeddings a gradient."""
    cope, nope = (
        cr.Transformer(cr.ModelConfig(vocab_size=11, dim=24, layers=2, heads=2, scheme=name))
        for name in ("cope", "nope")
    )
    cope.load_state_dict({**nope.state_dict(), "scheme.embeddings": torch.zeros(2, 64, 12)})
    ids = random_ids(2, 30)
    torch.testing.assert_close(cope(ids), nope(ids))
    cope(ids).square().sum().backward()
    assert cope.scheme.embeddings.grad.abs().amax(dim=(1, 2)).min() > 0


def test_gates_that_are_open_count_tokens() -> None:
    """Logits of 50: the embedding of the i-th position then stands for the distance i."""
    visible = torch.ones(9, 9).tril().bool()
    found = contextual_positions(torch.full((9, 9), 50.0, dtype=torch.float64), visible, last=5)
    distance = torch.arange(9)[:, None] - torch.arange(9) + 1
    torch.testing.assert_close(found, distance.clamp(0, 5).double())


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(0, 5), st.integers(0, 20))
def test_positions_grow_by_one_gate_per_key_seen(seed: int, queries: int, earlier: int, last: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    keys = queries + earlier
    logits = 3 * torch.randn(2, queries, keys, dtype=torch.float64, generator=generator)
    visible = torch.ones(queries, keys).tril(earlier).bool() & (torch.rand(2, 1, keys, generator=generator) < 0.7)
    found = contextual_positions(logits, visible, last=last)
    explicit = torch.zeros_like(found)
    for j in range(keys):
        explicit[..., j] = (logits.sigmoid() * visible)[..., j:].sum(-1).clamp(max=last)
    torch.testing.assert_close(found, explicit, **CLOSE)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6), st.floats(0, 1))
def test_interpolation_meets_whole_positions_and_is_straight_between_them(values: list[float], share: float) -> None:
    table = torch.tensor(values, dtype=torch.float64)
    position = share * (len(values) - 1)
    low, high = math.floor(position), math.ceil(position)
    expected = values[low] + (position - low) * (values[high] - values[low])
    assert float(interpolated(table, torch.tensor([position], dtype=torch.float64))) == pytest.approx(
        expected, abs=1e-9
    )
    torch.testing.assert_close(interpolated(table, torch.arange(len(values)).double()), table)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 2**32 - 1), st.booleans())
def test_any_chunking_streams(sizes: list[int], seed: int, padded: bool) -> None:
    model, ids = lively_model("cope", layers=2, options={"positions": 5}), random_ids(2, 18, seed=seed)
    masks = {"valid": torch.rand(2, 18, generator=torch.Generator().manual_seed(seed)) < 0.7} if padded else {}
    with torch.no_grad():
        torch.testing.assert_close(in_chunks(model, ids, sizes, **masks), model(ids, **masks), rtol=0, atol=1e-12)


def test_positions_are_summed_in_float32_at_least() -> None:
    """A thousand small gates: bfloat16 would stop counting them at 8."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 1, 1000, 4, generator=generator).bfloat16() for _ in range(3))
    query[..., 0], key[..., 0] = 2.0, -4.0
    embeddings = torch.linspace(-3, 3, 64).bfloat16()[:, None] * torch.tensor([[1.0, 0, 0, 0]]).bfloat16()
    exact = contextual_attention(*(x.double() for x in (query, key, value, embeddings)))
    found = contextual_attention(query, key, value, embeddings)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), exact, rtol=0.01, atol=0.01)


def test_no_tensor_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contextual, "TILE", 16)
    seq = 800
    given_tensors = inputs(seq, seq, heads=1)

    def train() -> None:
        with counting_kept() as kept:
            out = contextual_attention(*given_tensors)
        assert sum(kept.values()) < 8 * 2 * seq * seq / 4
        out.sum().backward()

    assert largest_tensor(train) <= 2 * 16 * seq


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*lru_cache.*")
def test_several_tiles_compile_into_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contextual, "TILE", 16)
    torch._dynamo.reset()
    model, ids = lively_model("cope", layers=1), random_ids(2, 40)
    found, expected = torch.compile(model, fullgraph=True, backend="aot_eager")(ids), model(ids)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    ours, theirs = (torch.autograd.grad(x.square().sum(), list(model.parameters())) for x in (found, expected))
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our, their, rtol=1e-9, atol=1e-9)
