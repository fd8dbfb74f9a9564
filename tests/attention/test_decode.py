"""The general path of a single token's attention; the kernel's are in tests/kernels."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given

from contentrope.attention import decode
from contentrope.attention.decode import attend_one
from tests.support.single_tokens import EXAMPLES, Example, example, worst

ROUNDINGS = 8


def read(given: Example, **options: Any) -> torch.Tensor:
    return attend_one(*given.positional, **given.named, **options)


@given(**EXAMPLES)
def test_it_reads_what_is_defined_pair_by_pair(**drawn: Any) -> None:
    one = example(**drawn)
    found = read(one)
    assert found.shape == one.query.shape
    assert worst(found, one) <= ROUNDINGS
    exact = one.to(torch.float64)
    assert worst(read(exact), exact) <= ROUNDINGS


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_summed_up_in_float32(dtype: torch.dtype) -> None:
    one = example(begins=(100, 20), columns=400, group=3, head_dim=64, taken="all", memory=True, hidden="some").to(
        dtype
    )
    found = read(one)
    assert found.dtype == dtype
    assert worst(found, one) <= 1


@pytest.mark.parametrize("begins", [(0, 0), (19, 19), (0, 19), (20, 20), (7, 7)])
@pytest.mark.parametrize("memory", [False, True])
def test_at_the_edges_of_the_window(begins: tuple[int, ...], memory: bool) -> None:
    one = example(begins=begins, taken="all", memory=memory)
    assert worst(read(one), one) <= ROUNDINGS


def test_bounds_that_the_host_knows_change_nothing() -> None:
    for begins in ((7, 7), (3, 12)):
        one = example(begins=begins, taken="all", hidden="a row")
        assert torch.equal(read(one, begin_bounds=(min(begins), max(begins))), read(one))
        assert worst(read(one, begin_bounds=(0, 20)), one) <= ROUNDINGS


@pytest.mark.parametrize("begins", [(0, 0), (7, 7), (3, 12)])
@pytest.mark.parametrize("hidden", ["none", "a row"])
def test_what_layers_share_is_no_more_than_who_reads_which_column(begins: tuple[int, ...], hidden: str) -> None:
    memo: dict[Any, Any] = {}
    for seed in (0, 1, 0):
        drawn = {"taken": "all", "memory": True, "hidden": hidden, "group": 2}
        marks = example(begins=begins, **drawn)
        one = example(seed, begins=begins, **drawn)._replace(key_memory=marks.key_memory, hidden=marks.hidden)
        assert torch.equal(read(one, memo=memo), read(one))
        assert worst(read(one, memo=memo), one) <= ROUNDINGS


def test_what_is_kept_for_other_columns_is_noticed() -> None:
    """A control: who shares it between two tokens reads wrongly."""
    memo: dict[Any, Any] = {}
    read(example(begins=(7, 7)), memo=memo)
    other = example(begins=(12, 12))
    assert worst(read(other, memo=memo), other) > 1000 * ROUNDINGS


@pytest.mark.parametrize("change", ["queries", "begin", "taken", "memory", "hidden"])
def test_what_is_read_wrongly_is_noticed(change: str) -> None:
    one = example(begins=(7, 12), taken="all", memory=True, hidden="some")
    other = {
        "queries": one._replace(query=one.far_query, far_query=one.query),
        "begin": one._replace(begin=one.begin + 1, key_memory=None),
        "taken": one._replace(taken=None),
        "memory": one._replace(key_memory=None),
        "hidden": one._replace(hidden=None),
    }[change]
    assert worst(read(other), one) > 1000 * ROUNDINGS


@pytest.mark.parametrize("far_score", [-1e4, 1e4])
@pytest.mark.parametrize("taken", [None, 1e5])
@pytest.mark.parametrize("hidden", ["none", "a row"])
def test_extreme_scores(far_score: float, taken: float | None, hidden: str) -> None:
    one = extreme(far_score, taken, hidden)
    assert worst(read(one), one) <= ROUNDINGS


def extreme(far_score: float, taken: float | None, hidden: str) -> Example:
    one = example(begins=(7, 12), hidden=hidden)
    one.key[..., 0] = 1.0
    far_query = torch.zeros_like(one.far_query)
    far_query[..., 0] = far_score / one.scale
    return one._replace(far_query=far_query, taken=None if taken is None else torch.full((1, 1, 1), taken))


def test_a_row_that_is_padding_reads_zeros() -> None:
    one = example(hidden="a row", memory=True, taken="all")
    found = read(one)
    assert not found[0].any()
    assert found[1].all()


@pytest.mark.parametrize("hidden", ["none", "a row"])
@pytest.mark.parametrize("begins", [(3, 3), (2, 4), (0, 0), (6, 6)])
def test_gradients(begins: tuple[int, ...], hidden: str) -> None:
    one = example(begins=begins, columns=6, group=2, head_dim=4, taken="all", hidden=hidden).to(torch.float64)
    assert one.taken is not None
    inputs = tuple(x.detach().clone().double().requires_grad_() for x in (*one[:4], one.taken))

    def function(query: Any, far_query: Any, key: Any, value: Any, taken: Any) -> torch.Tensor:
        return read(one._replace(query=query, far_query=far_query, key=key, value=value, taken=taken))

    assert torch.autograd.gradcheck(function, inputs)
    torch.testing.assert_close(function(*inputs), read(one._replace(taken=one.taken.double())))


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_it_compiles_whole(needs_gradient: bool) -> None:
    compiled = torch.compile(attend_one, fullgraph=True, backend="aot_eager", dynamic=True)
    for columns in (20, 33):
        one = example(begins=(7, 12), columns=columns, taken="all", memory=True, hidden="a row")
        query = one.query.requires_grad_(needs_gradient)
        found = compiled(query, *one.positional[1:], **one.named)
        assert found.requires_grad == needs_gradient
        assert worst(found.detach(), one._replace(query=query.detach())) <= ROUNDINGS


def test_which_calls_the_kernel_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnGPU(torch.Tensor):
        is_cuda = True

    def on_gpu(dtype: torch.dtype = torch.bfloat16, dim: int = 64, requires_grad: bool = False) -> torch.Tensor:
        return torch.zeros(1, 1, 1, dim, dtype=dtype).as_subclass(OnGPU).requires_grad_(requires_grad)

    monkeypatch.setattr(decode, "HAS_TRITON", True)
    rule = decode.reads_by_kernel
    assert rule(on_gpu(), None)
    assert rule(on_gpu(torch.float32, 256))
    assert not rule(torch.zeros(1, 1, 1, 64))
    assert not rule(on_gpu(torch.float64))
    assert not rule(on_gpu(dim=257))
    assert not rule(on_gpu(), on_gpu(requires_grad=True))
    with torch.no_grad():
        assert rule(on_gpu(), on_gpu(requires_grad=True))
    monkeypatch.setattr(decode, "HAS_TRITON", False)
    assert not rule(on_gpu())


def test_triton_is_not_imported_for_it() -> None:
    program = "import sys, contentrope.attention.decode; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
