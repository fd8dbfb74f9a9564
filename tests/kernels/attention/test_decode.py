"""The kernels of a single token's attention, run by Triton's interpreter on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings

pytest.importorskip("triton")

from contentrope.attention import decode as general
from contentrope.attention.decode import attend_one
from contentrope.kernels.attention import decode
from contentrope.kernels.ops import programs
from contentrope.rotary import Rotation, rotate, rotation_of
from tests.support import in_chunks, lively_model, random_ids
from tests.support.single_tokens import EXAMPLES, Example, example, with_room, worst

ROUNDINGS = 8
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def read(given: Example) -> torch.Tensor:
    tensors = [x if x is None else x.to(DEVICE) for x in given[:-1]]
    return decode.attend_one(*tensors, given.scale).cpu()


@settings(max_examples=25)
@given(**EXAMPLES)
def test_it_reads_what_is_defined_pair_by_pair(**drawn: Any) -> None:
    one = example(**drawn)
    found = read(one)
    assert found.shape == one.query.shape
    assert worst(found, one) <= ROUNDINGS


CASES: dict[str, dict[str, Any]] = {
    "one column": {"columns": 1, "begins": (0, 1)},
    "several splits": {"columns": 600, "begins": (250,), "taken": "all", "memory": True, "hidden": "some"},
    "splits of several tiles": {"columns": 1000, "begins": (500, 0, 999), "kv_heads": 1, "taken": "by head"},
    "all near": {"columns": 300, "begins": (0,), "taken": "one"},
    "all far but the token": {"columns": 300, "begins": (299,), "taken": "one"},
    "a boundary of tiles": {"columns": 192, "begins": (128, 64)},
    "many heads in a group": {"kv_heads": 1, "group": 9, "taken": "by head"},
    "more than a product's rows": {"kv_heads": 2, "group": 17, "taken": "by head", "hidden": "some"},
    "odd wide heads": {"head_dim": 130, "columns": 70, "begins": (30,)},
    "the widest heads": {"head_dim": 256, "columns": 70, "begins": (30,)},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", CASES)
def test_cases(case: str, dtype: torch.dtype, poisoned_memory: None) -> None:
    one = example(**CASES[case]).to(dtype)
    assert worst(read(one), one) <= (ROUNDINGS if dtype == torch.float32 else 2)


def test_a_negative_scale() -> None:
    one = example(columns=300)._replace(scale=-0.5)
    assert worst(read(one), one) <= ROUNDINGS


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
@pytest.mark.parametrize("columns", [20, 300])
def test_extreme_scores(far_score: float, taken: float | None, columns: int) -> None:
    one = example(begins=(7, 12), columns=columns, hidden="a row")
    one.key[..., 0] = 1.0
    far_query = torch.zeros_like(one.far_query)
    far_query[..., 0] = far_score / one.scale
    one = one._replace(far_query=far_query, taken=None if taken is None else torch.full((1, 1, 1), taken))
    assert worst(read(one), one) <= ROUNDINGS


@pytest.mark.parametrize("columns", [20, 300])
def test_a_row_that_is_padding_reads_zeros(columns: int) -> None:
    one = example(hidden="a row", columns=columns, memory=True, taken="all")
    found = read(one)
    assert not found[0].any()
    assert found[1].all()


def test_views_of_any_strides() -> None:
    one = example(columns=40, group=2, taken="by head", memory=True, hidden="some")
    assert one.hidden is not None
    assert one.key_memory is not None
    packed = torch.stack((one.key, one.value)).transpose(2, 3).contiguous()  # heads of a column side by side
    wide = torch.stack((one.hidden, one.key_memory), dim=-1)
    strided = one._replace(
        query=one.query.transpose(1, 2).contiguous().transpose(1, 2),
        far_query=one.far_query.mT.contiguous().mT,
        key=packed[0].transpose(1, 2),
        value=packed[1].transpose(1, 2),
        hidden=wide[..., 0],
        key_memory=wide[..., 1],
    )
    assert torch.equal(read(strided), read(one))


def test_the_compiler_sees_one_operator() -> None:
    calls: list[str] = []

    def compiler(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        calls.extend(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return module

    one = example(columns=40, taken="by head")
    compiled = torch.compile(decode.attend_one, fullgraph=True, backend=compiler)
    tensors = [x if x is None else x.to(DEVICE) for x in one[:-1]]
    assert torch.equal(compiled(*tensors, one.scale).cpu(), read(one))
    assert len(calls) == 1
    assert "attend_one" in calls[0]


@pytest.mark.parametrize("tile", [32, 64])
@pytest.mark.parametrize("key_heads", [1, 12, 96, 300])
def test_splits_cover_all_columns_once_and_fill_the_gpu(key_heads: int, tile: int) -> None:
    sms = 132
    for columns in (1, 63, 64, 129, 4096, 4097, 65536, 10**6):
        share, count = decode.split_of(columns, key_heads, sms, tile)
        assert share % tile == 0
        assert count == programs(columns, share) <= decode.MOST_SPLITS
        assert count == 1 or count * key_heads <= decode.PER_SM * sms
        if columns >= 65536:
            assert count * key_heads >= min(decode.PER_SM * sms // 2, decode.MOST_SPLITS // 2)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_a_cuda_graph_goes_on_with_other_numbers() -> None:
    one = example(columns=300, begins=(100, 7), taken="all", hidden="some")
    given = one._replace(**{name: x.to(DEVICE) for name, x in one._asdict().items() if isinstance(x, torch.Tensor)})

    def by_rule() -> torch.Tensor:
        return attend_one(*given.positional, **given.named)

    assert worst(by_rule().cpu(), one) <= ROUNDINGS  # compiled now
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = by_rule()
    given.begin.add_(50)
    graph.replay()
    assert worst(out.cpu(), one._replace(begin=one.begin + 50)) <= ROUNDINGS


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pairs", [4, 3], ids=["all dimensions", "some"])
@pytest.mark.parametrize("places", [1, 2], ids=["one rotation", "by key head"])
def test_the_next_token_is_rotated_and_appended(
    layout: Any, dtype: torch.dtype, pairs: int, places: int, poisoned_memory: None
) -> None:
    """In one kernel what else are three steps; rows behind the last column are left alone."""
    one = example(columns=300, begins=(130, 7), group=3, taken="by head", memory=True, hidden="some").to(dtype)
    heads, kv_heads, dim = one.query.shape[1], one.key.shape[1], one.key.shape[-1]
    generator = torch.Generator().manual_seed(5)
    near, far = (rotation_of(torch.randn(2, 1, places, pairs, generator=generator)) for _ in range(2))
    qkv = torch.randn(2, 1, heads + 2 * kv_heads, dim, generator=generator).to(dtype)
    query, key, value = qkv.split((heads, kv_heads, kv_heads), dim=2)
    queries = (rotate(query, rotation, layout).transpose(1, 2) for rotation in (near, far))
    one.key[:, :, -1:], one.value[:, :, -1:] = rotate(key, near, layout).transpose(1, 2), value.transpose(1, 2)
    expected = one._replace(**dict(zip(("query", "far_query"), queries, strict=True)))

    stores = [with_room(x, dtype).to(DEVICE) for x in (one.key, one.value)]
    for store in stores:
        store[:, :, -1] = torch.nan
    rotations = [Rotation(*(x if x is None else x.to(DEVICE) for x in rotation)) for rotation in (near, far)]
    marks = [x if x is None else x.to(DEVICE) for x in (one.begin, one.taken, one.key_memory, one.hidden)]
    found = decode.attend_next(qkv.to(DEVICE), *rotations, *stores, *marks, one.scale, layout == "interleaved")
    assert worst(found.cpu(), expected) <= (ROUNDINGS if dtype == torch.float32 else 2)
    for store, wanted in zip(stores, (one.key, one.value), strict=True):
        allowed = 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(store.cpu(), wanted, rtol=allowed, atol=allowed)


def test_a_model_that_decodes_by_one_kernel_reads_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the exponents of each head, over units that leave the window."""
    options = {"window": 10, "competition": 1.0, "learn_competition": True}
    model, ids = lively_model("content", dtype=torch.float32, options=options).to(DEVICE), random_ids(2, 40).to(DEVICE)
    expected, calls = in_chunks(model.cpu(), ids.cpu(), (1,)), []
    monkeypatch.setattr(general, "reads_by_kernel", lambda *tensors: calls.append(1) or True)
    found = in_chunks(model.to(DEVICE), ids, (1,))
    assert len(calls) == 40 * model.config.layers, "every layer of every token"
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=2e-5)
