"""In which order the programs of a kernel take heads and tiles: each once, and heads abreast, tile by tile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

triton = pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("for Triton's interpreter, which the suite has off where there is a GPU", allow_module_level=True)

import triton.language as tl  # noqa: E402

from contentrope.kernels.attention import launch  # noqa: E402
from contentrope.kernels.attention.tiles import place_of  # noqa: E402


@triton.jit
def order_kernel(heads_out, tiles_out, abreast, tiles):
    place, turn = place_of(abreast, tiles)
    tl.store(heads_out + tl.program_id(0), place)
    tl.store(tiles_out + tl.program_id(0), turn)


def order(heads: int, abreast: int, tiles: int) -> list[tuple[int, int]]:
    """Head and tile of every program."""
    places, turns = (torch.full((heads * tiles,), -1, dtype=torch.int32) for _ in range(2))
    order_kernel[(heads * tiles,)](places, turns, abreast, tiles)
    return list(zip(places.tolist(), turns.tolist(), strict=True))


@given(heads=st.integers(1, 9), abreast=st.integers(1, 12), tiles=st.integers(1, 5))
def test_every_tile_of_every_head_is_one_programs(heads: int, abreast: int, tiles: int) -> None:
    found = order(heads, abreast, tiles)
    assert sorted(found) == [(head, tile) for head in range(heads) for tile in range(tiles)]
    # Heads that are taken abreast go tile by tile; no head begins before those of the section before it have ended.
    assert found == sorted(found, key=lambda pair: (pair[0] // abreast, pair[1], pair[0]))


def test_as_many_heads_go_abreast_as_the_cache_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    query, value = torch.zeros(2, 12, 64, 16), torch.zeros(2, 6, 64, 16)
    of_a_head = 2 * 64 * 16 * 4
    for holds, queries, keys in ((12, 24, 12), (6, 12, 6), (5, 8, 4), (1, 2, 1), (0, 2, 1)):
        monkeypatch.setattr(launch, "_cache_bytes", lambda device, n=holds: n * of_a_head * launch.CACHE_SHARE)
        # A tile of queries reads keys and values, which several heads of queries share.
        assert launch._heads_abreast(query, value) == queries
        assert launch._heads_abreast(value, value) == keys


def test_any_number_of_rows_and_heads_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Along the first axis of a grid, where there is room for all of them."""
    grids: list[tuple[int, ...]] = []

    def record(kernel: Any, grid: Any, *given: Any, **constants: Any) -> None:
        grids.append(grid({"M": 32, "N": 32, "ROWS": 32}) if callable(grid) else grid)

    monkeypatch.setattr(launch, "start", record)
    states, start = [torch.empty(4096, 17, 3, 2)] * 4, torch.zeros(4096, 3, dtype=torch.int32)
    pairs = launch.Pairs(start, start, start, None, start, None, None)
    out, log_sum = launch.forward(*states, pairs, None, 1.0, 0)
    launch.backward(out, *states, out, log_sum, pairs, None, 1.0, 0)
    assert grids == [(4096 * 17,), (2 * 4096 * 17,), (4096 * 34,)]
