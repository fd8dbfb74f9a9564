"""The fused kernels, run by Triton's interpreter on the CPU: numbers and gradients, not speed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import contentrope as cr
from contentrope.attention import PairRule, api, fused
from contentrope.attention.pairs import States
from contentrope.context import AddressedContext
from contentrope.errors import BackendError
from tests.support import lively_model, random_ids
from tests.support.cases import CASES, Case, make, output_and_gradients, worst_relative_errors

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("on a GPU the kernels themselves are tested: test_gpu.py", allow_module_level=True)

from contentrope.kernels import tuning
from contentrope.kernels.attention import ops

EPSILON = torch.finfo(torch.float32).eps
SHORT = Case("short", seq=40, head_dim=8, pairs=4, end_rate=0.3, batch=1)


def require_within_budget(case: Case, seed: int = 0, roundings: int = 8) -> None:
    """Twice what the reference loses in float32 against float64, and some roundings: sums go in another order. The
    exponent's gradient, a sum over all queries of terms that cancel, is allowed more."""
    low = make(case, seed).to("cpu", torch.float32)
    weight = torch.randn(case.batch, case.heads, case.seq, case.head_dim, dtype=torch.float64)
    exact = output_and_gradients(low.to("cpu", torch.float64), weight, backend="reference")
    allowed = worst_relative_errors(output_and_gradients(low, weight, backend="reference"), exact)
    found = worst_relative_errors(output_and_gradients(low, weight, backend="fused"), exact)
    for index, (error, budget) in enumerate(zip(found, allowed, strict=True)):
        assert error <= 2 * budget + roundings * (4 if index == 5 else 1) * EPSILON, (index, found, allowed)


def shortened(case: Case) -> Case:
    """Two tiles and a part of one are enough here: the interpreter's are of 16 and 32."""
    seq = 64 if case.name == "whole blocks" else min(case.seq, 75)
    batch = 1 if case.padding == "none" and case.heads > 2 else case.batch
    return replace(case, seq=seq, batch=batch, max_length=seq * case.max_length // case.seq)


SHORT_CASES = [shortened(case) for case in CASES]


@pytest.mark.parametrize("case", SHORT_CASES, ids=lambda c: c.name)
def test_the_kernels_err_no_more_than_the_reference(case: Case) -> None:
    require_within_budget(case)


@pytest.mark.parametrize("head_dim", [2, 20, 33, 60, 130, 256])
def test_any_head_dimension(head_dim: int) -> None:
    pairs = head_dim // 2
    require_within_budget(replace(SHORT, head_dim=head_dim, pairs=pairs, competition="number"), roundings=16)


FEATURES = (
    "plain",
    "grouped queries",
    "all together",
    "units longer than a block",
    "window, competition per head",
    "window, all together",
)


def test_what_is_prepared_for_the_backward_kernel_ends_with_every_tile() -> None:
    """Tiles are read whole: one that reached beyond would read what is not there."""
    name = "backward_kernel"
    tiles = [
        *tuning.NARROW[name],
        *tuning.WIDE[name],
        tuning.SMALL[name],
        *tuning.EXACT[name],
        tuning.INTERPRETED[name],
    ]
    for tile in tiles:
        assert tile.rows is not None
        assert ops.MOST_ROWS % tile.rows == ops.MOST_ROWS % tile.queries == 0, tile
    assert ops.MOST_ROWS % ops.PREPARED_ROWS == 0


@pytest.mark.parametrize("case", [case for case in SHORT_CASES if case.name in FEATURES], ids=lambda c: c.name)
def test_wide_heads_whose_band_is_gone_through_twice(case: Case) -> None:
    require_within_budget(replace(case, batch=1, head_dim=66, pairs=33), roundings=16)


@settings(max_examples=12, deadline=None)
@given(
    seq=st.integers(1, 66),
    end_rate=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    max_length=st.integers(1, 60),
    seed=st.integers(0, 10**6),
    padding=st.sampled_from(["none", "left", "right", "holes"]),
    memory_rate=st.sampled_from([0.0, 0.5]),
    window=st.sampled_from([0, 1, 16, 25, 70]),
)
def test_random_units(**drawn: Any) -> None:
    seed = drawn.pop("seed")
    require_within_budget(replace(SHORT, heads=2, kv_heads=1, competition="number", **drawn), seed, roundings=16)


FAR_CASES = [
    Case("far", seq=101, max_length=30),
    Case("far, at the edges of tiles", seq=128, max_length=32, batch=1),
    Case("far, units as long as the reach", seq=96, max_length=48, end_rate=0.0, batch=1),
    Case("far, one-token units", seq=50, max_length=1),
    Case("far, grouped", seq=75, max_length=20, heads=4, kv_heads=2, competition="per head", batch=1),
    Case("far, long units", seq=135, max_length=60, end_rate=0.02, competition="number", batch=1),
    Case("far, window", seq=120, max_length=20, window=40, competition="number"),
    Case("far, window in whole tiles", seq=128, max_length=16, window=32, batch=1),
    Case("far, window of one token, grouped", seq=90, max_length=16, window=1, heads=4, kv_heads=2, batch=1),
]


@pytest.mark.parametrize("case", FAR_CASES, ids=lambda c: c.name)
def test_keys_beyond_reach_are_read_elsewhere_and_counted_once(
    case: Case, far_keys_apart: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    for name in ("far_forward", "far_backward"):
        real = getattr(ops, name)
        monkeypatch.setattr(ops, name, lambda *given, n=name, f=real: asked.append(n) or f(*given))
    inputs = make(case)
    assert 0 < ops.reach_of(inputs.q, inputs.units.longest, case.window) <= case.seq
    require_within_budget(case)
    assert asked == ["far_forward", "far_backward"]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seq=st.integers(16, 66),
    end_rate=st.sampled_from([0.0, 0.05, 0.5]),
    max_length=st.integers(1, 50),
    seed=st.integers(0, 10**6),
    window=st.sampled_from([0, 10, 32, 70]),
)
def test_random_units_with_far_keys(far_keys_apart: None, **drawn: Any) -> None:
    seed = drawn.pop("seed")
    require_within_budget(replace(SHORT, heads=2, kv_heads=1, competition="number", **drawn), seed, roundings=16)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_far_keys_of_padding_or_memory_are_not_left_to_a_library(case: Case) -> None:
    """There some of them are hidden."""
    some_hidden = case.padding != "none" or case.memory_rate > 0
    assert (fused._longest(PairRule.among(make(case).units, case.window)) is None) == some_hidden


def test_padding_and_memory_are_read_right_where_others_have_far_keys(far_keys_apart: None) -> None:
    require_within_budget(replace(SHORT, seq=90, max_length=20, padding="left", memory_rate=0.4))


def test_nothing_is_far_where_the_length_of_units_is_unknown(far_keys_apart: None) -> None:
    units = make(SHORT).units
    known = cr.Units.of(units.unit, units.local, units.closes)
    assert known.longest is None
    assert ops.reach_of(torch.zeros(1, 1, 40, 8), known.longest) == 0


def test_far_keys_need_a_gpu_a_short_dtype_and_a_long_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ops.reach_of(torch.zeros(1, 1, 4096, 64, dtype=torch.bfloat16), 100) == 0
    monkeypatch.setattr(ops, "_library_can", lambda query: True)
    assert ops.reach_of(torch.zeros(1, 1, 4096, 64), 100) == 112
    assert ops.reach_of(torch.zeros(1, 1, 800, 64), 100) == 0


@pytest.mark.parametrize(
    "name", ["plain", "one token", "all together", "right padding", "window", "window, all together"]
)
def test_every_number_is_written(name: str, poisoned_memory: None) -> None:
    require_within_budget(next(case for case in SHORT_CASES if case.name == name))


def test_half_precision() -> None:
    case = replace(SHORT, competition="number")
    low = make(case).to("cpu", torch.float16)
    weight = torch.randn(case.batch, case.heads, case.seq, case.head_dim, dtype=torch.float64)
    exact = output_and_gradients(low.to("cpu", torch.float64), weight, backend="reference")
    found = worst_relative_errors(output_and_gradients(low, weight, backend="fused"), exact)
    assert max(found) < 4 * torch.finfo(torch.float16).eps


def test_tensors_may_lie_as_they_like() -> None:
    """Heads before tokens or after them, and dimensions that are not side by side."""
    inputs = make(SHORT).to("cpu", torch.float32)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return cr.addressed_attention(q, k, v, inputs.units, inputs.angles, backend="fused")

    whole = attend(inputs.q, inputs.k, inputs.v)
    for shuffled in ((0, 2, 1, 3), (0, 1, 3, 2), (3, 2, 1, 0)):
        back = [shuffled.index(i) for i in range(4)]
        moved = [x.permute(shuffled).contiguous().permute(back) for x in (inputs.q, inputs.k, inputs.v)]
        assert torch.equal(attend(*moved), whole)


def require_causal() -> None:
    model = lively_model("content", dtype=torch.float32, layers=2, backend="fused", max_unit_length=20)
    ids = random_ids(1, 75, seed=4)
    before = model(ids)
    for t in (3, 31, 32, 60):
        changed = ids.clone()
        changed[:, t + 1 :] = random_ids(1, 75, seed=t, end_rate=0.6)[:, t + 1 :]
        assert torch.equal(model(changed)[:, : t + 1], before[:, : t + 1]), "what came before is changed"


def test_changing_later_tokens_leaves_earlier_logits_alone_to_the_last_bit() -> None:
    require_causal()


class LeakyContext(AddressedContext):
    """Every query carries the address of its own unit, open or not."""

    def _set_rotations(self, by_slot: Tensor | None) -> None:
        super()._set_rotations(by_slot)
        assert self.fused_rotations is not None
        self.fused_rotations = self.fused_rotations._replace(closes=torch.ones_like(self.fused_rotations.closes))
        self.rule = replace(self.rule, closes=torch.ones_like(self.rule.closes), memo={})


def test_addresses_of_open_units_leak_the_future(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contentrope.schemes.addressed.AddressedContext", LeakyContext)
    with pytest.raises(AssertionError, match="what came before is changed"):
        require_causal()


@pytest.mark.parametrize(("seq", "longest"), [(9, None), (33, 16)], ids=["near", "far"])
def test_the_operator_keeps_its_promises(seq: int, longest: int | None, far_keys_apart: None) -> None:
    """What PyTorch's compiler and autograd are told about it is true."""
    inputs = make(replace(SHORT, seq=seq, kv_heads=1, competition="per head")).to("cpu", torch.float32)
    *pairs, bonus = fused._pairs(PairRule.among(inputs.units), inputs.competition, 2)
    assert bonus is not None
    bonus = None if longest else bonus.detach().requires_grad_()
    states = inputs.q, inputs.k, inputs.k, inputs.v, None
    torch.library.opcheck(ops.attention.known, (*states, *pairs, bonus, 0.3, longest, 0))


@pytest.mark.parametrize(("seq", "longest", "window"), [(20, None, 8), (45, 16, 8), (9, 9, 12)])
def test_the_operator_keeps_its_promises_with_a_window(
    seq: int, longest: int | None, window: int, far_keys_apart: None
) -> None:
    """With near and far keys, with keys beyond reach, with a whole text near."""
    inputs = make(replace(SHORT, seq=seq, kv_heads=1, competition="per head")).to("cpu", torch.float32)
    *pairs, bonus = fused._pairs(PairRule.among(inputs.units, window), inputs.competition, 2)
    assert bonus is not None
    far_query = inputs.q.detach().flip(-1).requires_grad_()
    states = inputs.q, inputs.k, inputs.k, inputs.v, far_query
    torch.library.opcheck(ops.attention.known, (*states, *pairs, bonus.detach().requires_grad_(), 0.3, longest, window))


def test_a_compiler_sees_one_graph_that_serves_all_boundaries() -> None:
    model = lively_model("content", dtype=torch.float32, layers=1, backend="fused", options={"competition": 1.0})
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    ids = [random_ids(1, 21, seed=seed, end_rate=rate) for seed, rate in ((0, 0.1), (1, 0.5), (2, 0.0))]
    compiled(ids[0]).sum().backward()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for other in ids[1:]:
            torch.testing.assert_close(compiled(other), model(other), rtol=0, atol=1e-5)


def test_a_compiler_is_asked_for_no_view_of_flags_as_numbers() -> None:
    """PyTorch 2.11 generates code for none."""
    viewed: list[torch.dtype] = []

    def compiler(module: torch.fx.GraphModule, inputs: Any) -> Any:
        for node in module.graph.nodes:
            if node.target == "view" and isinstance(node.args[1], torch.dtype):
                viewed.append(node.args[0].meta["example_value"].dtype)
        return module

    model = lively_model("content", dtype=torch.float32, layers=1, backend="fused")
    ids, some = random_ids(1, 40), (torch.arange(40) < 20)[None]
    compiled = torch.compile(model, fullgraph=True, backend=compiler)
    torch.testing.assert_close(compiled(ids, valid=some, memory=some), model(ids, valid=some, memory=some))
    assert torch.int64 in viewed, "frequencies are kept as bits; if they are not seen, nothing is"
    assert torch.bool not in viewed


@pytest.mark.parametrize(
    ("dtype", "head_dim", "dropout", "offset", "message"),
    [
        (torch.float64, 8, 0.0, 0, "'fused' has no float64; use backend='reference' or 'tiled'"),
        (torch.float32, 8, 0.1, 0, r"'fused' has no dropout \(got 0.1\); use backend='tiled' or dropout=0"),
        (torch.float32, 8, 0.0, 3, "'fused' reads whole sequences, not cached ones"),
        (torch.float32, 300, 0.0, 0, "'fused' has heads of at most 256, got 300"),
    ],
)
def test_what_it_cannot_do_is_refused(
    dtype: torch.dtype, head_dim: int, dropout: float, offset: int, message: str
) -> None:
    units = make(SHORT).units
    rule = replace(PairRule.among(units), offset=offset)
    query = torch.zeros(1, 2, 40, head_dim, dtype=dtype)
    with pytest.raises(BackendError, match=message):
        api.REGISTERED["fused"](States(query, query, query, query), rule, dropout=dropout, scale=1.0)


def test_without_interpreter_a_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    inputs = make(SHORT).to("cpu", torch.float32)
    with pytest.raises(BackendError, match="'fused' needs CUDA tensors, got cpu; use backend='tiled'"):
        cr.addressed_attention(inputs.q, inputs.k, inputs.v, inputs.units, inputs.angles, backend="fused")
    model = lively_model("content", dtype=torch.float32, backend="fused")
    with pytest.raises(BackendError, match="'fused' needs CUDA tensors, got cpu; use backend='tiled'"):
        model(random_ids(1, 20))
