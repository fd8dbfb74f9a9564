"""Tiles of the kernels: a few are tried once for every class of shapes, the fastest is kept, on disk too."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import triton

from contentrope.kernels.ops import is_interpreted

CLASS = ["LENGTH_CLASS", "WIDTH", "GROUP", "HAS_VALID", "HAS_MEMORY", "HAS_BONUS", "HAS_FAR", "PRECISION"]
"""What the best tiles depend on, besides the dtype."""
ROUNDS = 5
MOST_LAUNCHES = 10
ENOUGH_MS = 1.0
"""In a round a tile is started until it has run this long, or so many times."""
HEAD_START = 20_000_000
"""Cycles a GPU waits before a round, some ten milliseconds: all launches are there by then, on a busy processor too."""


class Tile(NamedTuple):
    queries: int
    keys: int
    warps: int
    stages: int
    band: int = 1
    """Stages of the band, which is short and needs many registers: with one nothing is loaded ahead."""
    rows: int | None = None
    """Backward: what a program keeps, queries or keys, while it goes through the other, ``keys`` or ``queries`` at a
    time. Forward it keeps the queries."""
    registers: int | None = None
    """The most a thread may have, so that more programs fit on an SM; None leaves it to the compiler."""

    def config(self) -> Any:
        sizes = {"M": self.queries, "N": self.keys, "BAND": self.band}
        if self.rows is not None:
            sizes["ROWS"] = self.rows
        return triton.Config(sizes, num_warps=self.warps, num_stages=self.stages, maxnreg=self.registers)


# Few, as each costs a user seconds of compiling. Chosen by trial on one H200, for 1,024 to 32,768 tokens; where
# far keys are read elsewhere, few are left to a kernel, and tiles win of which many programs fit on an SM.
NARROW = {
    "forward_kernel": [Tile(64, 64, 4, 3, 2, registers=168), Tile(64, 32, 4, 3, 3, registers=128)],
    "backward_kernel": [
        Tile(32, 32, 4, 3, 3, 64, 168),
        Tile(32, 64, 4, 3, 2, 64, 168),
        Tile(16, 32, 4, 3, 3, 64, 168),
    ],
    "window_forward_kernel": [Tile(64, 64, 4, 3, 2), Tile(64, 64, 4, 3, 2, registers=168)],
    "window_backward_kernel": [Tile(32, 64, 4, 3, 2, 64, 168), Tile(64, 64, 4, 3, 1, 64)],
}
"""For heads of up to 64 dimensions."""
WIDE = {
    "forward_kernel": [
        Tile(64, 64, 4, 3, 2),
        Tile(64, 64, 4, 2, 2),
        Tile(64, 32, 4, 3, 2, registers=168),
        Tile(128, 64, 8, 2),
    ],
    "backward_kernel": [Tile(32, 32, 4, 3, 3, 64), Tile(16, 32, 4, 3, 3, 64)],
    "window_forward_kernel": [Tile(64, 64, 4, 2, 2), Tile(128, 64, 8, 2), Tile(128, 64, 8, 3, 2)],
    "window_backward_kernel": [Tile(32, 32, 4, 3, 2, 64), Tile(64, 64, 8, 2, 2, 64), Tile(64, 64, 8, 2, 2, 128)],
}


def _with_window(forward: Any, backward: Any) -> dict[str, Any]:
    """By kernel; those that read a window take the same."""
    return {
        "forward_kernel": forward,
        "backward_kernel": backward,
        "window_forward_kernel": forward,
        "window_backward_kernel": backward,
    }


SMALL = _with_window(Tile(32, 32, 4, 2), Tile(32, 32, 4, 2, rows=32))
"""Fits where nothing else does: the widest heads in float32. Backward it is the fastest for those of 256 dimensions."""
EXACT = _with_window(
    [Tile(32, 32, 8, 2), Tile(16, 16, 4, 2)],
    [Tile(32, 32, 8, 2, rows=32), Tile(16, 16, 4, 2, rows=16)],
)
"""For products in full float32, which no tensor core does: the compiler writes them out, which for larger tiles takes
minutes, and fits into no registers. The second where the first needs more shared memory than many a GPU has."""
INTERPRETED = _with_window(Tile(32, 16, 4, 1), Tile(16, 16, 4, 1, rows=32))
"""Small, so that small examples have several tiles."""


def tiles_for(kernel: str, width: int, precision: str) -> list[Tile]:
    """What is tried.

    >>> tiles_for("forward_kernel", 64, "ieee")
    [Tile(queries=32, keys=32, warps=8, stages=2, band=1, rows=None, registers=None)]
    """
    if precision == "ieee":
        return EXACT[kernel][: 1 if width <= 128 else 2]
    return [*(NARROW if width <= 64 else WIDE)[kernel], SMALL[kernel]]


@functools.cache
def tuned(kernel: Any) -> Any:
    """The kernel with its tiles chosen when a class of shapes is first met."""
    name = kernel.__name__
    if is_interpreted():
        return triton.autotune([INTERPRETED[name].config()], key=CLASS)(kernel)

    def fitting(configs: list[Any], given: dict[str, Any], **settings: Any) -> list[Any]:
        all_given = {**given, **settings}
        kept = tiles_for(name, all_given["WIDTH"], all_given["PRECISION"])
        return [config for config, tile in zip(configs, every, strict=True) if tile in kept]

    every = list(dict.fromkeys([*NARROW[name], *WIDE[name], SMALL[name], *EXACT[name]]))
    prune = {"early_config_prune": fitting}
    return triton.autotune(
        [t.config() for t in every], key=CLASS, prune_configs_by=prune, do_bench=milliseconds, cache_results=True
    )(kernel)


def milliseconds(launch: Callable[[], object], quantiles: Sequence[float] = ()) -> list[float]:
    """What a launch takes at best, then the median and the worst, whatever ``quantiles`` Triton asks for: of one among
    many, with the cache as the one before has left it.

    In a model a layer reads what the one before has just written. Timed with an empty cache, as Triton does unless told
    otherwise, short kernels get the tiles that load well, not those that compute well.
    """
    launch()  # compiled now
    often = int(ENOUGH_MS / max(_round(launch, 1), ENOUGH_MS / MOST_LAUNCHES))
    times = sorted(_round(launch, max(1, often)) for _ in range(ROUNDS))
    return [times[0], statistics.median(times), times[-1]]


def _round(launch: Callable[[], object], often: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(HEAD_START)
    begin.record()
    for _ in range(often):
        launch()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / often
