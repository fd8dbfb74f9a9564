"""Compiles all kernels for a GPU that need not be there; run as a program, as Triton's interpreter must be off.

Layers are read with launches recorded instead of done, and every recorded kernel goes through Triton and the
assembler. Prints a line for each: its name, its size, what it can do.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from contentrope.kernels import address, rotary
from contentrope.kernels.attention import decode, ops
from contentrope.kernels.tuning import tiles_for
from tests.support.all_kernels import run_all, single_tokens

TYPES = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int8: "*i8",
}
Launch = tuple[Any, tuple[Any, ...], dict[str, Any]]


def main(capability: int) -> None:
    for kernel, given, constants in recorded():
        name = f"{kernel.__module__.removeprefix('contentrope.')}.{kernel.__name__}"
        compiled = compile_for(capability, kernel, given, constants)
        flags = [flag for flag, is_set in constants.items() if flag.startswith("HAS_") and is_set]
        print(name, f"{len(compiled.asm['cubin'])} bytes", *flags, flush=True)


def recorded() -> list[Launch]:
    launches: list[Launch] = []

    def record(kernel: Any, grid: Any, tensors: tuple[Any, ...], numbers: tuple[Any, ...], /, **constants: Any) -> None:
        if callable(grid):  # has tiles to choose from
            tile = tiles_for(kernel.__name__, constants["WIDTH"], constants["PRECISION"])[0]
            constants |= tile.config().kwargs | {
                "num_warps": tile.warps,
                "num_stages": tile.stages,
                "maxnreg": tile.registers,
            }
        launches.append((kernel, (*tensors, *numbers), constants))

    ops.tuned = lambda kernel: kernel
    for module in (ops, rotary, address, decode):
        module.start = record  # type: ignore[attr-defined]
    run_all("cpu")
    single_tokens("cpu")
    return launches


def compile_for(capability: int, kernel: Any, given: tuple[Any, ...], constants: dict[str, Any]) -> Any:
    options = {name: constants[name] for name in ("num_warps", "num_stages", "maxnreg") if name in constants}
    values = dict(zip(kernel.arg_names, given, strict=False)) | constants
    signature, fixed = {}, {}
    for place, parameter in enumerate(kernel.params):
        value = values[parameter.name]
        if parameter.is_constexpr:
            signature[parameter.name], fixed[place,] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = TYPES[value.dtype]
        else:
            signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
    source = ASTSource(fn=kernel, signature=signature, constexprs=fixed)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 90)
