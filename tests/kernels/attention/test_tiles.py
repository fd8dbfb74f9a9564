"""All tiles that a GPU may choose from, in Triton's interpreter: numbers, gradients, where they read and write."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("on a GPU the kernels themselves are tested: test_gpu.py", allow_module_level=True)

from contentrope.kernels import tuning
from contentrope.kernels.tuning import Tile
from tests.kernels.attention.test_fused import require_within_budget
from tests.support.cases import CASES, Case
from tests.support.tiles import interpreted_with


def sizes(kernel: str) -> list[Tile]:
    """One of each size; warps, stages and registers are nothing to an interpreter."""
    every = [*tuning.NARROW[kernel], *tuning.WIDE[kernel], tuning.SMALL[kernel], *tuning.EXACT[kernel]]
    return list({(tile.queries, tile.keys, tile.rows): tile for tile in every}.values())


FORWARD, BACKWARD = sizes("forward_kernel"), sizes("backward_kernel")
PAIRED = [(FORWARD[i % len(FORWARD)], BACKWARD[i % len(BACKWARD)]) for i in range(max(len(FORWARD), len(BACKWARD)))]
by_size = pytest.mark.parametrize(
    ("forward", "backward"), PAIRED, ids=lambda t: "x".join(str(n) for n in (t.queries, t.keys, t.rows) if n)
)
LONG = Case("units longer than a tile, no whole tiles", seq=205, end_rate=0.0, max_length=137, batch=1)
NAMES = "whole blocks", "spared units and padding", "all together"


@by_size
@pytest.mark.parametrize("case", [LONG, *(case for case in CASES if case.name in NAMES)], ids=lambda c: c.name)
def test_every_size_of_tiles(case: Case, forward: Tile, backward: Tile) -> None:
    with interpreted_with(forward_kernel=forward, backward_kernel=backward):
        require_within_budget(replace(case, batch=1), roundings=16)


@by_size
def test_every_size_of_tiles_with_wide_heads_and_far_keys(forward: Tile, backward: Tile, far_keys_apart: None) -> None:
    case = Case("wide", seq=205, batch=1, head_dim=66, pairs=33, max_length=40, competition="number")
    with interpreted_with(forward_kernel=forward, backward_kernel=backward):
        require_within_budget(case, roundings=16)


def test_sizes_differ() -> None:
    assert len(FORWARD) >= 5
    assert len(BACKWARD) >= 5
