"""Kernels with a fault, for tools that must find it. As a program it runs, on a GPU, that for the tool it is given."""

from __future__ import annotations

import sys

import torch
import triton
import triton.language as tl


@triton.jit
def reads_beyond(given, out):
    """Four gibibytes after its tensor, where no other one is."""
    at = tl.arange(0, 128)
    tl.store(out + at, tl.load(given + (1 << 30) + at))


@triton.jit
def all_write_at_one_place(out):
    """In memory that the threads of a program share; what they read there next is that of any of them."""
    at = tl.arange(0, 128)
    read = tl.inline_asm_elementwise(
        "{ .reg .u32 place; mov.u32 place, global_smem; st.shared.u32 [place], $1; ld.shared.u32 $0, [place]; }",
        "=r,r",
        [at],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    # Sums over several warps are what makes Triton ask for shared memory.
    tl.store(out + at, read + tl.sum(read, 0))


def main(tool: str) -> None:
    out = torch.zeros(128, dtype=torch.int32, device="cuda")
    if tool == "memcheck":
        reads_beyond[(1,)](torch.zeros_like(out), out)
    elif tool == "racecheck":
        all_write_at_one_place[(1,)](out)
    else:
        sys.exit(f"no kernel has a fault for {tool!r}; there are some for memcheck and racecheck")
    torch.cuda.synchronize()


if __name__ == "__main__":
    main(sys.argv[1])
