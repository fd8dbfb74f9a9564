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


def paired(first: str) -> list[tuple[Tile, Tile]]:
    """Tiles of a forward kernel, each with one of its backward kernel; every size of both occurs."""
    forward, backward = sizes(f"{first}forward_kernel"), sizes(f"{first}backward_kernel")
    count = max(len(forward), len(backward))
    return [(forward[i % len(forward)], backward[i % len(backward)]) for i in range(count)]


def by_size(first: str) -> pytest.MarkDecorator:
    names = "forward", "backward"
    return pytest.mark.parametrize(
        names, paired(first), ids=lambda t: "x".join(str(n) for n in (t.queries, t.keys, t.rows) if n)
    )


LONG = Case("units longer than a tile, no whole tiles", seq=205, end_rate=0.0, max_length=137, batch=1)
PLAIN, WINDOWED = (
    [case for case in CASES if case.name in names]
    for names in (("whole blocks", "all together"), ("window in whole blocks", "window, all together"))
)


@by_size("")
@pytest.mark.parametrize("case", [LONG, *PLAIN], ids=lambda c: c.name)
def test_every_size_of_tiles(case: Case, forward: Tile, backward: Tile) -> None:
    with interpreted_with(forward_kernel=forward, backward_kernel=backward):
        require_within_budget(replace(case, batch=1), roundings=16)


@by_size("window_")
@pytest.mark.parametrize("case", WINDOWED, ids=lambda c: c.name)
def test_every_size_of_tiles_with_a_window(case: Case, forward: Tile, backward: Tile) -> None:
    with interpreted_with(window_forward_kernel=forward, window_backward_kernel=backward):
        require_within_budget(replace(case, batch=1), roundings=16)


@by_size("")
def test_every_size_of_tiles_with_wide_heads_and_far_keys(forward: Tile, backward: Tile, far_keys_apart: None) -> None:
    case = Case("wide", seq=205, batch=1, head_dim=66, pairs=33, max_length=40, competition="number")
    with interpreted_with(forward_kernel=forward, backward_kernel=backward):
        require_within_budget(case, roundings=16)


def test_sizes_differ() -> None:
    for first in ("", "window_"):
        forward, backward = ({tile for pair in paired(first) for tile in pair[i : i + 1]} for i in (0, 1))
        assert min(len(forward), len(backward)) >= 4
