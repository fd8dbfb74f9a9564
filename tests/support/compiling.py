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

import contentrope as cr
from contentrope.attention import PairRule, fused
from contentrope.attention.fused import launch, together
from contentrope.attention.fused.tuning import tiles_for
from contentrope.descriptor import operator as descriptor
from contentrope.rotary import Rotation
from contentrope.turned import launch as turning
from contentrope.turned import shares, turns_of

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

    launch.tuned = lambda kernel: kernel
    for module in (launch, turning, shares, descriptor):
        module.start = record  # type: ignore[attr-defined]
    read(heads=2, kv_heads=2, head_dim=64)
    read(heads=4, kv_heads=2, head_dim=96, padded=True, memory=True, competition=1.0)
    read(heads=2, kv_heads=2, head_dim=16, spare=(1, 0))
    launch.forward(*states(), far_pairs(), None, 1.0, 16)
    launch.backward(*(states()[:1] + states()), states()[0], torch.zeros(1, 2, 64), far_pairs(), None, 1.0, 16)
    summed_up()
    return launches


def read(
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    padded: bool = False,
    memory: bool = False,
    spare: tuple[int, ...] = (),
    competition: float = 0.0,
) -> None:
    """One layer, forwards and backwards."""
    ids = torch.arange(64)[None] % 7
    some = (torch.arange(64) < 40)[None]
    units = cr.segment(ids, cr.Terminators({0}), valid=some if padded else None, memory=some if memory else None)
    angles = torch.zeros(1, 64, kv_heads, head_dim // 2, requires_grad=True)
    place = torch.zeros(1, 64, 1, head_dim // 2)
    turns = turns_of(Rotation(place.cos(), place.sin()), angles, units.unit, units.closes)
    given = torch.zeros(1, 64, heads + 2 * kv_heads, head_dim, dtype=torch.bfloat16, requires_grad=True)
    rule = PairRule.among(units, spare)
    facts = *turns[:6], *fused._facts(rule, competition, heads)
    out, *_ = together.attention._recorded(given, turns.angles, *facts, kv_heads, False, 1.0, None)
    out.sum().backward()


def states() -> tuple[torch.Tensor, ...]:
    return tuple(torch.zeros(1, 2, 64, 64, dtype=torch.bfloat16) for _ in range(4))


def far_pairs() -> launch.Pairs:
    start = torch.zeros(1, 64, dtype=torch.int32)
    return launch.Pairs(start, start, start, None, start, None, None)


def summed_up() -> None:
    embedded = torch.zeros(1, 64, 192, requires_grad=True)
    slot, turn = torch.zeros(1, 64, dtype=torch.int64), torch.ones(1, 64, 1, 48)
    given = embedded, slot, turn, turn, torch.ones(192), torch.zeros(192), 1e-5, 96, False
    descriptor.unit_descriptors._recorded(*given)[0].sum().backward()


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
