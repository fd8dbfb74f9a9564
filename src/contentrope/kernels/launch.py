"""Starting Triton kernels."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contentrope.errors import BackendError

Grid = tuple[int, ...] | Callable[[dict[str, Any]], tuple[int, ...]]
"""Programs along each axis, or how many there are for tiles that have been chosen."""
MOST_ACROSS = 65535
"""Programs that a GPU starts along the second and the third axis of a grid."""


def is_interpreted() -> bool:
    """Triton runs its kernels in Python, on any device: for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def programs(length: int, tile: int) -> int:
    """How many tiles cover a length.

    >>> programs(64, 64), programs(65, 64)
    (1, 2)
    """
    return -(-length // tile)


def power_of_two(least: int) -> int:
    """The first that is no smaller.

    >>> [power_of_two(n) for n in (1, 2, 3, 64, 65)]
    [1, 2, 4, 64, 128]
    """
    return 1 << (least - 1).bit_length()


def start(
    kernel: Any, grid: Grid, tensors: tuple[Tensor, ...], numbers: tuple[float, ...], /, **constants: Any
) -> None:
    """``kernel[grid](*tensors, *numbers, **constants)``, in the order of its parameters; it may be an autotuned one."""
    if not callable(grid) and max(grid[1:], default=0) > MOST_ACROSS:
        most = f"the GPU starts programs for at most {MOST_ACROSS} of them at once"
        raise BackendError(f"{max(grid[1:])} rows: {most}; give fewer at a time, or use backend='tiled'")
    if is_interpreted():
        kernel[grid](*tensors, *numbers, **constants)
        return
    device = torch.cuda.current_device()
    if tensors[0].is_cuda and tensors[0].get_device() != device:  # Triton starts kernels on the current one
        with torch.cuda.device(tensors[0].get_device()):
            start(kernel, grid, tensors, numbers, **constants)
        return
    _start_cached(kernel, grid, tensors, numbers, device, constants)


# A cache of launches: kernels are started without being looked for again.
#
# Triton looks at every argument of every call, in Python, to find the tiles and the compiled kernel that fit. For small
# models that can take longer than the kernel. What was found is kept here by what it depends on: dtypes, alignment and
# whereabouts of tensors, the values of all numbers and constants, the device.
#
# To be measured on a GPU: an eager training step (``TrainConfig(acceleration="none")``) of a small model, with
# ``kernel[grid](*tensors, *numbers, **constants)`` in place of ``_start_cached(...)``. If it takes less than 3%
# longer, all below goes.

ALIGNMENT = 16
"""Bytes; Triton compiles other kernels for tensors that do not begin at a multiple."""
MOST = 4096
"""Kernels with their arguments that are kept; texts of ever new lengths would fill the memory."""


class Found(NamedTuple):
    compiled: Any
    constants: tuple[Any, ...]
    """In the order of the kernel's parameters, behind those that are given."""
    tile: dict[str, Any]


_found: dict[Hashable, Found] = {}


def _start_cached(
    kernel: Any,
    grid: Grid,
    tensors: tuple[Tensor, ...],
    numbers: tuple[float, ...],
    device: int,
    constants: dict[str, Any],
) -> None:
    places = [x.data_ptr() for x in tensors]
    kinds = tuple([(x.dtype, x.is_cuda, place % ALIGNMENT == 0) for x, place in zip(tensors, places, strict=True)])
    key = id(kernel), device, kinds, numbers, tuple(constants.items())
    found = _found.get(key)
    if found is None:
        _keep(key, kernel, kernel[grid](*tensors, *numbers, **constants), len(tensors) + len(numbers), constants)
        return
    size = grid(found.tile) if callable(grid) else grid
    # Given tensors, Triton would ask the driver of each of them whether the GPU can reach it.
    found.compiled[(*size, 1, 1)[:3]](*places, *numbers, *found.constants)


def _keep(key: Hashable, kernel: Any, compiled: Any, given: int, constants: dict[str, Any]) -> None:
    chosen = getattr(kernel, "best_config", None)
    tile = {} if chosen is None else dict(chosen.kwargs)
    values = {**constants, **tile}
    if len(_found) >= MOST:
        _found.clear()
    _found[key] = Found(compiled, tuple(values[name] for name in kernel.arg_names[given:]), tile)
