"""Queries, keys and values side by side, rotated and read by one operator: bit by bit what the operators give one after
the other, and one gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import contentrope as cr
from contentrope.attention import PairRule, fused
from contentrope.attention.api import REGISTERED
from contentrope.attention.pairs import States
from contentrope.rotary import rotation_of
from tests.support import lively_model, random_ids

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Example:
    """Random numbers of one layer: all heads side by side, addresses of units, places, an exponent for every head."""

    def __init__(
        self,
        *,
        seq: int = 45,
        heads: int = 4,
        kv_heads: int = 2,
        head_dim: int = 8,
        pairs: int = 4,
        end_rate: float = 0.2,
        padded: bool = False,
        memory: bool = False,
        layout: Any = "half",
        dtype: torch.dtype = torch.float32,
        window: int = 0,
    ) -> None:
        torch.manual_seed(seq)
        self.window = window
        self.kv_heads, self.layout, self.scale = kv_heads, layout, head_dim**-0.5
        tokens = (torch.rand(2, seq) >= end_rate).long().to(DEVICE)
        valid = torch.arange(seq, device=DEVICE) < torch.tensor([[seq], [max(1, seq - 9)]], device=DEVICE)
        of_memory = (torch.arange(seq, device=DEVICE) < seq // 2).expand(2, -1) if memory else None
        self.units = cr.segment(
            tokens, cr.Terminators({0}), valid=valid if padded else None, memory=of_memory, max_length=12
        )
        self.qkv = random(2, seq, heads + 2 * kv_heads, head_dim).to(dtype).requires_grad_()
        self.angles = random(2, seq, kv_heads, pairs).requires_grad_()
        self.local, self.near, self.far_query = (rotation_of(random(2, seq, 1, pairs)) for _ in range(3))
        self.competition = random(heads).abs().requires_grad_()
        self.weight = random(2, heads, seq, head_dim).to(dtype)

    def rotations(self) -> fused.FusedRotations:
        versions = {"near": self.near, "far_query": self.far_query} if self.window else {}
        return fused.rotations_of(self.local, self.angles, self.units.unit, self.units.closes, **versions)

    def rule(self) -> PairRule:
        return PairRule.among(self.units, self.window)

    def at_once(self, competition: float | Tensor) -> Tensor:
        return fused.attend_packed(
            self.qkv,
            self.kv_heads,
            self.rotations(),
            self.layout,
            self.rule(),
            competition=competition,
            scale=self.scale,
        )

    def one_after_the_other(self, competition: float | Tensor) -> Tensor:
        heads = self.qkv.shape[2] - 2 * self.kv_heads
        query, key, value = self.qkv.split((heads, self.kv_heads, self.kv_heads), dim=2)
        rotations = self.rotations()
        if self.window:
            *versions, far_query = rotations.of_window(query, key, self.layout)
        else:
            versions, far_query = list(rotations.of(query, key, self.layout)), None
        by_head = (x.transpose(1, 2) for x in (*versions, value))
        states = States(*by_head, None if far_query is None else far_query.transpose(1, 2))
        return REGISTERED["fused"](states, self.rule(), competition=competition, scale=self.scale)

    def output_and_gradients(self, function: Any, *, with_exponent: bool) -> list[Tensor]:
        out = function(self.competition if with_exponent else 0.0)
        leaves = [self.qkv, self.angles, *([self.competition] if with_exponent else [])]
        return [out.detach(), *torch.autograd.grad(out, leaves, self.weight)]

    def require_equal(self, *, with_exponent: bool = True) -> None:
        found, expected = (
            self.output_and_gradients(function, with_exponent=with_exponent)
            for function in (self.at_once, self.one_after_the_other)
        )
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.isfinite().all()
            assert torch.equal(ours, theirs)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape).to(DEVICE)


@pytest.mark.parametrize(
    ("given", "with_exponent"),
    [
        ({}, False),
        ({}, True),
        ({"layout": "interleaved"}, False),
        ({"heads": 6, "kv_heads": 2, "head_dim": 10, "pairs": 3}, True),
        ({"heads": 3, "kv_heads": 3, "dtype": torch.bfloat16}, False),
        ({"padded": True}, True),
        ({"memory": True}, False),
        ({"seq": 1}, True),
        ({"end_rate": 1.0}, False),
        ({"window": 10}, False),
        ({"window": 10}, True),
        ({"window": 10, "heads": 6, "kv_heads": 2, "head_dim": 10, "pairs": 3, "layout": "interleaved"}, False),
        ({"window": 7, "padded": True, "memory": True}, True),
        ({"window": 45}, False),
        ({"window": 45, "padded": True}, True),
        ({"window": 5, "dtype": torch.bfloat16}, False),
    ],
    ids=str,
)
def test_it_is_the_same_as_one_after_the_other(given: dict[str, Any], with_exponent: bool) -> None:
    Example(**given).require_equal(with_exponent=with_exponent)


@settings(max_examples=5, deadline=None)
@given(seq=st.integers(1, 50), end_rate=st.sampled_from([0.0, 0.1, 0.6]), kv_heads=st.sampled_from([1, 2, 4]))
def test_any_units(**drawn: Any) -> None:
    Example(**drawn).require_equal()


def test_far_keys_are_left_to_the_library(far_keys_apart: None) -> None:
    example = Example(seq=150, head_dim=16, pairs=8, dtype=torch.float32 if DEVICE == "cpu" else torch.bfloat16)
    from contentrope.kernels.attention import ops

    assert ops.reach_of(example.weight, example.units.longest) > 0
    example.require_equal()


def test_far_keys_of_a_window_are_left_to_the_library(far_keys_apart: None) -> None:
    dtype = torch.float32 if DEVICE == "cpu" else torch.bfloat16
    example = Example(seq=200, head_dim=16, pairs=8, dtype=dtype, window=40)
    from contentrope.kernels.attention import ops

    assert 0 < ops.reach_of(example.weight, example.units.longest, 40) < 150
    example.require_equal()


@pytest.mark.parametrize("window", [60, 61])
def test_a_text_no_longer_than_the_window_is_left_to_the_library(
    window: int, far_keys_apart: None, poisoned_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients of what is far are zero then, and nobody reads far versions: they may be anything."""
    from contentrope.kernels.attention import ops

    monkeypatch.setattr(ops, "window_forward_kernel", None)
    monkeypatch.setattr(ops, "window_backward_kernel", None)
    dtype = torch.float32 if DEVICE == "cpu" else torch.bfloat16
    example = Example(seq=60, head_dim=16, pairs=8, dtype=dtype, window=window)
    example.require_equal(with_exponent=False)
    example.require_equal()
    _, _, to_angles = example.output_and_gradients(example.at_once, with_exponent=False)
    assert not to_angles.any()


def test_every_number_is_written(poisoned_memory: None) -> None:
    Example(heads=6, kv_heads=2, head_dim=10, pairs=3).require_equal()
    Example(heads=6, kv_heads=2, head_dim=10, pairs=3, window=9).require_equal()


@pytest.mark.parametrize("window", [0, 5])
def test_the_operator_keeps_its_promises(window: int) -> None:
    from contentrope.kernels.attention import ops

    example = Example(seq=12, window=window)
    rotations = example.rotations()
    assert rotations.angles is not None
    by_token = rotations.angles.detach().requires_grad_()
    for competition in (0.0, example.competition):
        facts = [x if x is None else x.detach() for x in fused._pairs(example.rule(), competition, 4)]
        if facts[-1] is not None:
            facts[-1].requires_grad_()
        reading = example.kv_heads, example.scale, None, window
        given = example.qkv, by_token, *rotations.tensors(), False, *facts, *reading
        torch.library.opcheck(ops.packed_attention.known, given)


def calls_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which operators are called from here on."""
    from contentrope.kernels import rotary
    from contentrope.kernels.attention import ops

    calls: list[str] = []
    for name, module, attribute in (("packed", ops, "packed_attention"), ("rotated", rotary, "rotated_states")):
        real = getattr(module, attribute)
        monkeypatch.setattr(module, attribute, lambda *given, n=name, f=real: calls.append(n) or f(*given))
    return calls


@pytest.mark.parametrize(
    ("options", "settings", "used"),
    [
        ({}, {}, "packed"),
        ({"competition": 1.0}, {"kv_heads": 1}, "packed"),
        ({"sharpness": 0.3}, {}, "rotated"),
        ({}, {"attention_dropout": 1e-9}, "rotated"),
    ],
    ids=str,
)
@pytest.mark.parametrize("scheme", ["content", "random"])
def test_a_model_reads_and_learns_the_same_with_it(
    scheme: str, options: dict[str, Any], settings: dict[str, Any], used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = calls_of(monkeypatch)
    ids = random_ids(2, 45).to(DEVICE)
    valid = torch.arange(45, device=DEVICE) < torch.tensor([[45], [40]], device=DEVICE)
    found = []
    for backend in ("tiled", "fused"):
        model = lively_model(
            scheme, dtype=torch.float32, layers=2, backend=backend, options=options, **settings
        ).to(DEVICE)  # fmt: skip
        torch.manual_seed(0)  # for the addresses drawn at random
        logits = model.train()(ids, valid=valid)[valid]
        logits.square().mean().backward()
        found.append([logits.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    for ours, exact in zip(*found, strict=True):
        torch.testing.assert_close(ours, exact, rtol=0, atol=1e-4 * max(1.0, float(exact.abs().max())))
    assert calls == [used, used]  # one for each layer
