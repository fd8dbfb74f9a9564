"""In which order the programs of a kernel take heads and tiles: each once, some heads together, tile by tile."""

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

from contentrope.kernels.attention import ops  # noqa: E402
from contentrope.kernels.attention.tiles import scheduled_tile  # noqa: E402


@triton.jit
def order_kernel(heads_out, tiles_out, concurrent, tiles):
    place, order = scheduled_tile(concurrent, tiles)
    tl.store(heads_out + tl.program_id(0), place)
    tl.store(tiles_out + tl.program_id(0), order)


def order(heads: int, concurrent: int, tiles: int) -> list[tuple[int, int]]:
    """Head and tile of every program."""
    heads_out, tiles_out = (torch.full((heads * tiles,), -1, dtype=torch.int32) for _ in range(2))
    order_kernel[(heads * tiles,)](heads_out, tiles_out, concurrent, tiles)
    return list(zip(heads_out.tolist(), tiles_out.tolist(), strict=True))


@given(heads=st.integers(1, 9), concurrent=st.integers(1, 12), tiles=st.integers(1, 5))
def test_every_tile_of_every_head_is_one_programs(heads: int, concurrent: int, tiles: int) -> None:
    found = order(heads, concurrent, tiles)
    assert sorted(found) == [(head, tile) for head in range(heads) for tile in range(tiles)]
    # Heads that are scheduled together go tile by tile; none begins before those of the section before have ended.
    assert found == sorted(found, key=lambda pair: (pair[0] // concurrent, pair[1], pair[0]))


def test_as_many_heads_are_scheduled_together_as_the_cache_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    query, value = torch.zeros(2, 12, 64, 16), torch.zeros(2, 6, 64, 16)
    of_a_head = 2 * 64 * 16 * 4
    for holds, queries, keys in ((12, 24, 12), (6, 12, 6), (5, 8, 4), (1, 2, 1), (0, 2, 1)):
        monkeypatch.setattr(ops, "_cache_bytes", lambda device, n=holds: n * of_a_head * ops.CACHE_SHARE)
        # A tile of queries reads keys and values, which several heads of queries share.
        assert ops._concurrent_heads(query, value) == queries
        assert ops._concurrent_heads(value, value) == keys


def test_any_number_of_rows_and_heads_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Along the first axis of a grid, where there is room for all of them."""
    grids: list[tuple[int, ...]] = []

    def record(kernel: Any, grid: Any, *given: Any, **constants: Any) -> None:
        grids.append(grid({"M": 32, "N": 32, "ROWS": 32}) if callable(grid) else grid)

    monkeypatch.setattr(ops, "start", record)
    states, start = ops.States(*[torch.empty(4096, 17, 3, 2)] * 4), torch.zeros(4096, 3, dtype=torch.int32)
    pairs = ops.Pairs(start, start, start, start, None, None, None)
    out, lse = results = ops._outputs(states.query)
    reading = ops.Reading(1.0, None, 0)
    ops.forward(results, states, pairs, reading)
    ops.backward(ops.Gradients(out, out, out, out, out, lse), out, states, out, lse, pairs, reading)
    assert grids == [(4096 * 17,), (ops.MOST_ROWS // ops.PREPARED_ROWS * 4096 * 17,), (4096 * 34,)]
