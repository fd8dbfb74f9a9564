"""The fast backends on a GPU: numbers, gradients, causality, one compilation for all boundaries."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

import contentrope as cr
from contentrope.kernels.attention.ops import reach_of
from contentrope.kernels.tuning import NARROW, WIDE, Tile, tiles_for
from tests.support import LEARNED, lively_model, random_ids
from tests.support.cases import CASES, Case, make, output_and_gradients, worst_relative_errors
from tests.support.tiles import first_and_smallest, tried

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),
]
LARGE_CASES = [
    Case("long", seq=3001, batch=1, head_dim=64, pairs=32, competition="number"),
    Case("thousands of units", seq=4096, batch=1, heads=1, kv_heads=1, end_rate=0.7),
    Case("odd dimension", head_dim=60, pairs=30, competition="per head"),
    Case("wide heads", seq=300, head_dim=256, pairs=128),
    Case("window, long", seq=3001, batch=1, head_dim=64, pairs=32, competition="number", window=500),
    Case("window, wide heads", seq=300, head_dim=128, pairs=64, competition="per head", window=100),
]
WINDOW = {"window": 60, "competition": 1.0}
FAST = [("flex", case) for case in CASES if case.head_dim >= 16] + [("fused", case) for case in CASES + LARGE_CASES]


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()


@pytest.fixture(autouse=True, scope="module")
def few_tiles() -> Iterator[None]:
    with tried(first_and_smallest):
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("backend", "case"), FAST, ids=lambda x: x if isinstance(x, str) else x.name)
def test_fast_backends_err_no_more_than_the_reference(backend: str, case: Case, dtype: torch.dtype) -> None:
    """Twice what the reference loses in this dtype against float64, and a few roundings.

    Float32 sums are taken in another order. Bfloat16 needs one for its scores' gradients, which the kernel rounds; the
    exponent's gradient is a sum over all queries of such terms that cancel, so it is allowed four.
    """
    require_within_budget(backend, case, dtype)


def require_within_budget(backend: str, case: Case, dtype: torch.dtype) -> None:
    low = make(case).to("cuda", dtype)
    weight = torch.randn(case.batch, case.heads, case.seq, case.head_dim, dtype=torch.float64)
    exact = [x.cpu() for x in output_and_gradients(low.to("cuda", torch.float64), weight, backend="reference")]
    allowed = worst_relative_errors(output_and_gradients(low, weight, backend="reference"), exact)
    found = worst_relative_errors(output_and_gradients(low, weight, backend=backend), exact)
    print(backend, case.name, dtype, [f"{e:.1e}/{b:.1e}" for e, b in zip(found, allowed, strict=True)])
    for index, (error, budget) in enumerate(zip(found, allowed, strict=True)):
        roundings = (8 if dtype == torch.float32 else 1) * (4 if index == 5 else 1)
        assert error <= 2 * budget + roundings * torch.finfo(dtype).eps


TILES = [
    (head_dim, kernel, tile)
    for head_dim, of_kernels in ((64, NARROW), (96, WIDE))
    for kernel in of_kernels
    for tile in tiles_for(kernel, 64 if of_kernels is NARROW else 128, "tf32")
]


@pytest.mark.parametrize(("head_dim", "kernel", "tile"), TILES, ids=str)
def test_every_tile_errs_no_more_than_the_reference(head_dim: int, kernel: str, tile: Tile) -> None:
    """Elsewhere the fastest is used alone, or the first."""
    window = 200 if kernel.startswith("window") else 0

    def choose(asked: str, tiles: list[Tile]) -> list[Tile]:
        return [tile] if asked == kernel else tiles[:1]

    with tried(choose):
        sizes = {"seq": 700, "batch": 1, "heads": 4, "head_dim": head_dim, "pairs": head_dim // 2, "window": window}
        require_within_budget("fused", Case("tile", **sizes, competition="per head"), torch.bfloat16)


@pytest.mark.parametrize("backend", ["flex", "fused"])
@pytest.mark.parametrize("seq", [200, 256])
@pytest.mark.parametrize("options", [{}, LEARNED, WINDOW], ids=["plain", "learned", "window"])
def test_one_compilation_serves_all_boundaries(options: dict[str, object], seq: int, backend: str) -> None:
    settings = {"dim": 64, "max_unit_length": 50, "options": options}
    model = lively_model("content", dtype=torch.float32, backend=backend, **settings).cuda()
    compiled = torch.compile(model, fullgraph=True)
    ids = [random_ids(2, seq, seed=seed, end_rate=rate).cuda() for seed, rate in ((0, 0.1), (1, 0.5), (2, 0.0))]
    compiled(ids[0]).sum().backward()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for other in ids[1:]:
            model.zero_grad()
            compiled(other).square().sum().backward()
            found = [p.grad.clone() for p in model.parameters()]
            model.zero_grad()
            logits = model(other)
            logits.square().sum().backward()
            torch.testing.assert_close(compiled(other), logits, rtol=0, atol=1e-3)
            for ours, parameter in zip(found, model.parameters(), strict=True):
                assert float((ours - parameter.grad).norm()) <= 1e-3 * float(parameter.grad.norm()) + 1e-5


def test_uncompiled_model_does_not_recompile_either() -> None:
    model = lively_model("content", dtype=torch.float32, dim=64, max_unit_length=50).cuda()
    model(random_ids(2, 200, seed=0).cuda())
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed in (1, 2, 3):
            model(random_ids(2, 200, seed=seed, end_rate=0.3 / seed).cuda())


@pytest.mark.parametrize("options", [{}, WINDOW], ids=["plain", "window"])
@pytest.mark.parametrize("backend", ["fused", "flex", "tiled", "reference"])
def test_changing_later_tokens_leaves_earlier_logits_alone_to_the_last_bit(
    backend: str, options: dict[str, object]
) -> None:
    settings = {"dim": 64, "max_unit_length": 50, "options": options}
    model = lively_model("content", dtype=torch.float32, backend=backend, **settings).cuda()
    ids = random_ids(2, 300, seed=4).cuda()
    before = model(ids)
    for t in (3, 127, 128, 200, 298):
        changed = ids.clone()
        changed[:, t + 1 :] = random_ids(2, 300, seed=t, end_rate=0.6).cuda()[:, t + 1 :]
        assert torch.equal(model(changed)[:, : t + 1], before[:, : t + 1])


@pytest.mark.parametrize("options", [{}, {**WINDOW, "window": 30}], ids=["plain", "window"])
@pytest.mark.parametrize("t", [3, 63, 64, 500, 511, 512, 700, 898])
def test_far_keys_too_keep_earlier_logits_to_the_last_bit(t: int, options: dict[str, int]) -> None:
    """In bfloat16 long texts leave their far keys to a library."""
    settings = {"dim": 64, "max_unit_length": 50, "options": options}
    model = lively_model("content", dtype=torch.bfloat16, backend="fused", **settings).cuda()
    ids, window = random_ids(2, 900, seed=4).cuda(), options.get("window", 0)
    states = torch.zeros(2, 4, 900, 16, dtype=torch.bfloat16, device="cuda")
    assert reach_of(states, 50, window) == (96 if window else 64)
    changed = ids.clone()
    changed[:, t + 1 :] = random_ids(2, 900, seed=t, end_rate=0.6).cuda()[:, t + 1 :]
    assert torch.equal(model(changed)[:, : t + 1], model(ids)[:, : t + 1])


def cached_logits(model: cr.Transformer, ids: Tensor) -> Tensor:
    cache = model.new_cache(len(ids))
    return torch.cat([model(ids[:, i : i + 1], cache=cache) for i in range(ids.shape[1])], dim=1)


DECODED = {"plain": {}, "competition": {"competition": 1.0}, "learned": LEARNED, "window": {**WINDOW, "window": 20}}


@pytest.mark.parametrize("options", DECODED.values(), ids=DECODED)
def test_decoding_equals_the_parallel_forward(options: dict[str, object]) -> None:
    model = lively_model("content", dtype=torch.float32, dim=64, backend="tiled", options=options).cuda()
    ids = random_ids(2, 60).cuda()
    torch.testing.assert_close(cached_logits(model, ids), model(ids), rtol=0, atol=1e-4)


@pytest.mark.parametrize("window", [0, 200])
def test_a_fused_forward_is_the_same_every_time(window: int) -> None:
    case = Case("again", seq=700, batch=2, head_dim=64, pairs=32, competition="number", window=window)
    inputs = make(case).to("cuda", torch.bfloat16)

    def attend() -> Tensor:
        states = inputs.q, inputs.k, inputs.v, inputs.units, inputs.angles
        near = {"window": window, "frequencies": inputs.frequencies()}
        return cr.addressed_attention(*states, backend="fused", competition=0.7, **near)

    first = attend()
    assert all(torch.equal(first, attend()) for _ in range(5))


@pytest.mark.parametrize("window", [0, 100])
def test_fused_gradients_are_the_same_every_time(window: int) -> None:
    case = Case("again", seq=300, heads=4, head_dim=96, pairs=48, competition="number", window=window)
    inputs = make(case).to("cuda", torch.bfloat16)
    weight = torch.randn(2, 4, 300, 96)
    first = output_and_gradients(inputs, weight, backend="fused")[:4]  # to queries, keys and values
    for _ in range(5):
        again = output_and_gradients(inputs, weight, backend="fused")[:4]
        assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


def test_a_layers_gradients_are_the_same_every_time() -> None:
    """Those of addresses too, which go by way of all tokens of a unit."""
    model = lively_model("content", dtype=torch.float32, dim=64, max_unit_length=50, backend="fused").cuda()
    ids = random_ids(2, 300, seed=4).cuda()

    def gradients() -> list[Tensor]:
        model.zero_grad()
        model(ids).square().sum().backward()
        # PyTorch sums the gradient of embeddings in any order.
        return [p.grad.clone() for name, p in model.named_parameters() if "embed" not in name and p.grad is not None]

    first = gradients()
    assert len(first) > 10
    for _ in range(3):
        assert all(torch.equal(x, y) for x, y in zip(first, gradients(), strict=True))
