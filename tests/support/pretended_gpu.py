"""Starts kernels on a GPU that is not there, and compares each start with the one Triton itself would have made.

Run as a program: Triton decides when it is imported whether it interprets its kernels.
"""

import itertools
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget

from contentrope.kernels.ops import start

starts: list[tuple[Any, ...]] = []
"""Of every kernel started: programs, compiled function, arguments."""


class Launcher:
    def __init__(self, source: Any, metadata: Any) -> None:
        pass

    def __call__(self, x: int, y: int, z: int, stream: int, function: int, *rest: Any) -> None:
        starts.append((x, y, z, function, rest[4:]))


class PretendedGpu:
    launcher_cls = Launcher
    handles = itertools.count()
    utils = SimpleNamespace(
        load_binary=lambda *given: (1, next(PretendedGpu.handles), 64, 0, 1024),
        get_device_properties=lambda device: {"max_shared_mem": 2**17},
    )

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_benchmarker(self) -> Any:
        return lambda run, **settings: [1.0, 1.0, 1.0]


@triton.jit
def copy_kernel(source, target, stride, length, factor, SHIFT: tl.constexpr, M: tl.constexpr):  # noqa: N803
    column = tl.program_id(0) * M + tl.arange(0, M)
    values = tl.load(source + column * stride, mask=column < length)
    tl.store(target + column, values * factor + SHIFT, mask=column < length)


def by_tile(tile: dict[str, int]) -> tuple[int, int]:
    return 4096 // tile["M"], 5


def places(arguments: tuple[Any, ...]) -> list[Any]:
    """Triton takes a tensor, or where it is."""
    return [x.data_ptr() if isinstance(x, torch.Tensor) else x for x in arguments]


def main() -> None:
    triton.runtime.driver.set_active(PretendedGpu())
    torch.cuda.current_device = lambda: 0
    tuned = triton.autotune([triton.Config({"M": 64}), triton.Config({"M": 128})], key=["length"])(copy_kernel)
    memory = torch.zeros(4096)
    sources = (memory[:1000], memory[1:1001], memory.half()[:1000])  # one does not begin at a multiple of 16 bytes
    seen = set()
    for source, stride, length, factor, shift in itertools.product(sources, (1, 3, 16), (100, 112), (0.5, 2.0), (0, 1)):
        tensors, numbers = (source, source.clone()), (stride, length, factor)
        plain = {"SHIFT": shift, "M": 32}
        copy_kernel[(7,)](*tensors, *numbers, **plain)
        tuned[by_tile](*tensors, *numbers, SHIFT=shift)
        expected = starts[-2:]
        for _ in range(2):
            start(copy_kernel, (7,), tensors, numbers, **plain)
            start(tuned, by_tile, tensors, numbers, SHIFT=shift)
            for found, theirs in zip(starts[-2:], expected, strict=True):
                assert found[:4] == theirs[:4], (found, theirs)
                assert places(found[4]) == places(theirs[4]), (found, theirs)
        seen |= {one[3] for one in expected}
    print(f"{len(starts)} starts of {len(seen)} kernels")


if __name__ == "__main__":
    main()
