"""Every backend against the reference: outputs and all gradients, in all situations."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.flex_attention import flex_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import contentrope as cr
from contentrope.attention import PairRule, api, backend_name, flex, reference, tiled
from contentrope.attention.pairs import States
from tests.support.cases import CASES, Case, make, output_and_gradients, worst_relative_errors

TINY = Case("tiny", seq=7, head_dim=4, pairs=2, end_rate=0.3, competition="per head", heads=2, kv_heads=1)


def weight_of(case: Case) -> Tensor:
    return torch.randn(case.batch, case.heads, case.seq, case.head_dim, dtype=torch.float64)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_tiled_equals_reference_in_output_and_all_gradients(case: Case) -> None:
    inputs, weight = make(case), weight_of(case)
    exact = output_and_gradients(inputs, weight, backend="reference")
    found = output_and_gradients(inputs, weight, backend="tiled")
    for a, b in zip(found, exact, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


def test_tiled_can_be_computed_again_in_the_backward_pass() -> None:
    """Gradient checkpointing hands out what was saved once only."""
    inputs, weight = make(TINY), weight_of(TINY)

    def again(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda states, rule, **options: checkpoint(
            lambda *tensors: function(States(*tensors), rule, **options), *states, use_reentrant=False
        )

    exact = output_and_gradients(inputs, weight, backend="tiled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(api.REGISTERED, "tiled", replace(api.REGISTERED["tiled"], attend=again(tiled.attend)))
        found = output_and_gradients(inputs, weight, backend="tiled")
    for a, b in zip(found, exact, strict=True):
        assert torch.equal(a, b)


@given(
    seq=st.integers(1, 200),
    end_rate=st.sampled_from([0.0, 0.05, 0.5]),
    max_length=st.integers(1, 150),
    seed=st.integers(0, 10**6),
    padding=st.sampled_from(["none", "left", "right", "holes"]),
    memory_rate=st.sampled_from([0.0, 0.5]),
)
def test_tiled_equals_reference_on_random_units(**drawn: Any) -> None:
    seed = drawn.pop("seed")
    case = Case("random", heads=2, kv_heads=1, head_dim=4, pairs=2, competition="number", **drawn)
    inputs, weight = make(case, seed), weight_of(case)
    exact = output_and_gradients(inputs, weight, backend="reference")
    found = output_and_gradients(inputs, weight, backend="tiled")
    for a, b in zip(found, exact, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", CASES[:8], ids=lambda c: c.name)
def test_tiled_in_low_precision_errs_no_more_than_the_reference(case: Case, dtype: torch.dtype) -> None:
    """The budget comes from float64: twice what the reference loses in the same dtype, plus a few roundings."""
    low = make(case).to("cpu", dtype)
    weight = weight_of(case)
    exact = output_and_gradients(low.to("cpu", torch.float64), weight, backend="reference")
    allowed = worst_relative_errors(output_and_gradients(low, weight, backend="reference"), exact)
    found = worst_relative_errors(output_and_gradients(low, weight, backend="tiled"), exact)
    for error, budget in zip(found, allowed, strict=True):
        assert error <= 2 * budget + 4 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps


@pytest.mark.parametrize("backend", ["reference", "tiled"])
def test_gradcheck(backend: str) -> None:
    inputs = make(TINY)

    def attention(q: Tensor, k: Tensor, v: Tensor, angles: Tensor, competition: Tensor) -> Tensor:
        return cr.addressed_attention(q, k, v, inputs.units, angles, backend=backend, competition=competition)

    assert torch.autograd.gradcheck(attention, inputs.leaves())


def test_gradcheck_of_tiled_with_dropout() -> None:
    inputs = make(TINY)

    def attention(*leaves: Tensor) -> Tensor:
        torch.manual_seed(3)
        q, k, v, angles, competition = leaves
        return cr.addressed_attention(
            q, k, v, inputs.units, angles, backend="tiled", competition=competition, dropout=0.4
        )

    assert torch.autograd.gradcheck(attention, inputs.leaves())


@pytest.mark.parametrize("backend", ["reference", "tiled"])
def test_dropout_keeps_the_mean_and_differs_between_calls(backend: str) -> None:
    inputs = make(Case("dropout", seq=20, batch=1, heads=1, kv_heads=1))
    attend = partial(cr.addressed_attention, inputs.q, inputs.k, inputs.v, inputs.units, inputs.angles, backend=backend)
    with torch.no_grad():
        torch.manual_seed(0)
        draws = torch.stack([attend(dropout=0.3) for _ in range(3000)])
        exact = attend()
    standard_error = draws.std(0) / len(draws) ** 0.5
    assert float(((draws.mean(0) - exact).abs() / standard_error.clamp(min=1e-9)).max()) < 5.0
    assert not torch.equal(draws[0], draws[1])


@pytest.fixture
def eager_flex(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flex backend through the uncompiled kernel, which runs on the CPU: mask and scores, not speed."""
    monkeypatch.setitem(api.REGISTERED, "flex", replace(api.REGISTERED["flex"], runs_on=None))
    # Without block mask shortcuts: materialised, it checks mask_mod and score_mod.
    monkeypatch.setattr(flex, "_compiled_kernel", lambda: flex_attention)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_flex_rule_equals_reference(case: Case, eager_flex: None) -> None:
    inputs = make(case).to("cpu", torch.float32)
    attend = partial(
        cr.addressed_attention,
        *(inputs.q, inputs.k, inputs.v, inputs.units, inputs.angles),
        pairs=inputs.layout,
        competition=inputs.competition,
        window=inputs.window,
        frequencies=inputs.frequencies(),
    )
    with torch.no_grad():
        torch.testing.assert_close(attend(backend="flex"), attend(backend="reference"), rtol=0, atol=3e-6)


def dense_pairs(mask_mod: Callable[..., Tensor], batch: int, queries: int, keys: int) -> Tensor:
    b, q, k = torch.meshgrid(*(torch.arange(n) for n in (batch, queries, keys)), indexing="ij")
    return mask_mod(b, torch.zeros_like(b), q, k)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_flex_block_mask_lists_every_needed_block_and_only_full_ones_as_full(case: Case) -> None:
    rule = PairRule.among(make(case).units, case.window)
    layout = flex.layout_of(rule)
    mask = flex.block_mask(layout, rule)
    columns = layout.valid.shape[1]
    pairs = dense_pairs(mask.mask_mod, case.batch, case.seq, 2 * columns)
    # The last block of queries may be cut short: what is missing there neither needs nor forbids anything.
    any_visible = in_blocks(pairs, columns, filling=False).any(-1).any(-1)
    all_visible = in_blocks(pairs, columns, filling=True).all(-1).all(-1)
    by_query = listed(layout.partial_count, layout.partial, any_visible)
    full = listed(layout.full_count, layout.full, any_visible)
    assert bool((any_visible <= (by_query | full)).all())
    assert bool((full <= all_visible).all())
    assert not bool((full & by_query).any())
    # The backward pass reads the same lists by key block.
    by_key = any_visible.transpose(1, 2)
    assert torch.equal(listed(layout.by_key_count, layout.by_key, by_key), by_query.transpose(1, 2))
    assert torch.equal(listed(layout.full_by_key_count, layout.full_by_key, by_key), full.transpose(1, 2))


def test_flex_layout_promises_the_shapes_it_returns() -> None:
    """The compiler plans with the promised shapes; a wrong one is read out of bounds."""
    for case in CASES:
        rule = PairRule.among(make(case).units, case.window)
        arguments = rule.start, rule.near_from, rule.closes, rule.query_memory, rule.key_valid
        torch.library.opcheck(flex.block_layout, arguments, test_utils="test_faketensor")


def in_blocks(pairs: Tensor, columns: int, filling: bool) -> Tensor:
    whole = torch.nn.functional.pad(pairs, (0, 0, 0, columns - pairs.shape[1]), value=filling)
    return whole.view(len(pairs), columns // flex.BLOCK, flex.BLOCK, -1, flex.BLOCK).transpose(2, 3)


def listed(count: Tensor, indices: Tensor, like: Tensor) -> Tensor:
    """The blocks a block mask names, as a dense boolean."""
    chosen = torch.arange(indices.shape[-1]) < count[..., None]
    dense = torch.zeros_like(like, dtype=torch.int64)
    return dense.scatter_add(-1, indices[:, 0].long(), chosen[:, 0].long()) > 0


class LargestTensor(TorchDispatchMode):
    """Remembers the size of the largest tensor any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        for x in torch.utils._pytree.tree_leaves(out):
            if isinstance(x, Tensor):
                self.numel = max(self.numel, x.numel())
        return out


def test_tiled_never_makes_a_tensor_of_sequence_squared() -> None:
    seq = 8192
    inputs = make(Case("long", seq=seq, batch=1, heads=1, kv_heads=1, head_dim=4, pairs=2)).to("cpu", torch.float32)
    with torch.no_grad(), LargestTensor() as largest:
        attend = partial(cr.addressed_attention, inputs.q, inputs.k, inputs.v, inputs.units, inputs.angles)
        attend(backend="tiled")
        assert largest.numel <= 64 * seq
        small = make(Case("short", seq=512, batch=1, heads=1, kv_heads=1, head_dim=4, pairs=2))
        # The control: the reference does make one.
        cr.addressed_attention(small.q, small.k, small.v, small.units, small.angles, backend="reference")
    assert largest.numel >= 512 * 512


def test_tile_plan_keeps_its_scores_within_bounds() -> None:
    units = cr.segment(torch.ones(1, 65_536, dtype=torch.int64), cr.Terminators({0}), max_length=64)
    rule = PairRule.among(units)
    tile = tiled.tiles_of(rule, rows=8)[0]
    assert (tile.end - tile.begin) * 8 * 65_536 * 4 <= 2 * tiled.TILE["cpu"][1]


def test_backends_agree_on_their_signature() -> None:
    import inspect

    expected = inspect.signature(reference.attend).parameters
    for backend in api.REGISTERED.values():
        assert inspect.signature(backend.attend).parameters.keys() == expected.keys()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "fused"),
        ({"head_dim": 256}, "fused"),
        ({"head_dim": 257}, "tiled"),
        ({"dtype": torch.float64}, "tiled"),
        ({"dropout": 0.1}, "tiled"),
        ({"cached": True}, "tiled"),
        ({"device": "cpu"}, "tiled"),
        ({"name": "flex", "cached": True}, "flex"),
    ],
)
def test_auto_is_the_fastest_backend_that_can_read_a_call(given: dict[str, Any], expected: str) -> None:
    settings = {"name": "auto", "head_dim": 64, "device": "cuda", "dtype": torch.bfloat16} | given
    with FakeTensorMode():  # a CUDA tensor without a GPU
        states = torch.empty(1, device=settings.pop("device"), dtype=settings.pop("dtype"))
    assert backend_name(settings.pop("name"), states, settings.pop("head_dim"), **settings) == expected
