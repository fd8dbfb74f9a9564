"""Tiles of the kernels: tried once for every class of shapes, the fastest kept, on disk too."""

from __future__ import annotations

import functools
import os
from typing import Any

import triton

CLASS = ["LENGTH_CLASS", "WIDTH", "GROUP", "HAS_VALID", "HAS_MEMORY", "HAS_BONUS", "PRECISION"]
"""What the best tiles depend on, besides the dtype."""
TILES = [(128, 128), (128, 64), (128, 32), (64, 128), (64, 64), (64, 32), (32, 32)]
WARPS, STAGES = (4, 8), (2, 3, 4)
MOST_NUMBERS = 128 * 128
"""Of an accumulator: beyond it, registers spill and there is no point in trying."""


def is_interpreted() -> bool:
    """Triton runs its kernels in Python, on any device: for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def tuned(kernel: Any) -> Any:
    """The kernel with its tiles chosen when a class of shapes is first met."""
    if is_interpreted():  # small tiles, so that small examples have several
        return triton.autotune([triton.Config({"M": 32, "N": 16})], key=CLASS)(kernel)
    configs = [
        triton.Config({"M": m, "N": n}, num_warps=warps, num_stages=stages)
        for m, n in TILES
        for warps in WARPS
        for stages in STAGES
    ]
    return triton.autotune(configs, key=CLASS, prune_configs_by={"early_config_prune": _fitting}, cache_results=True)(
        kernel
    )


def _fitting(configs: list[Any], given: dict[str, Any], **settings: Any) -> list[Any]:
    """Those whose accumulators fit into registers, and no more tile than there are tokens."""
    width, length = {**given, **settings}["WIDTH"], {**given, **settings}["LENGTH_CLASS"]

    def fits(config: Any) -> bool:
        largest = max(config.kwargs["M"], config.kwargs["N"])
        return largest * width <= MOST_NUMBERS * (config.num_warps // 4) and largest <= length

    return [config for config in configs if fits(config)] or configs[-1:]
