"""A compiled model: one graph, no recompilation when boundaries move, the same numbers and gradients.

Compiled without a code generator (``aot_eager``): what is checked is the tracing, which is the same on every device.
"""

from dataclasses import replace

import pytest
import torch

import contentrope as cr
from contentrope.attention import api
from tests.support import DRAW_AT_RANDOM, LEARNED, VARIANTS, lively_model, random_ids

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*lru_cache.*")


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()


def gradients(model: cr.Transformer, logits: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(logits.square().sum(), list(model.parameters())))


@pytest.mark.parametrize("scheme", [name for name in VARIANTS if name not in DRAW_AT_RANDOM])
def test_one_graph_serves_all_boundaries_with_equal_gradients(scheme: str) -> None:
    model = lively_model(scheme, backend="reference")
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    gradients(model, compiled(random_ids(2, 30, seed=0)))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed, end_rate in ((1, 0.5), (2, 0.0)):
            ids = random_ids(2, 30, seed=seed, end_rate=end_rate)
            found, exact = compiled(ids), model(ids)
            torch.testing.assert_close(found, exact, rtol=0, atol=1e-12)
            for ours, theirs in zip(gradients(model, found), gradients(model, exact), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seq", [130, 256])
@pytest.mark.parametrize("options", [{}, LEARNED], ids=["plain", "learned"])
def test_flex_traces_into_one_graph(options: dict[str, object], seq: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU the kernel itself is only emulated, and forward only."""
    monkeypatch.setitem(api.REGISTERED, "flex", replace(api.REGISTERED["flex"], runs_on=None))
    model = lively_model("content", dtype=torch.float32, max_unit_length=50, options=options, backend="flex")
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        for seed, end_rate in ((0, 0.1), (1, 0.5), (2, 0.0)):
            ids = random_ids(2, seq, seed=seed, end_rate=end_rate)
            found = compiled(ids)
            model.backend = "reference"
            exact = model(ids)
            model.backend = "flex"
            torch.testing.assert_close(found, exact, rtol=0, atol=1e-4)
