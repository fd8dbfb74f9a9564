"""All kernels, forwards and backwards, with everything they can do. As a program it runs them on a GPU, for tools that
look at a program from outside, such as compute-sanitizer; it is small, as those are slow."""

from __future__ import annotations

import sys
from unittest import mock

import torch

import contentrope as cr
from contentrope.attention import PairRule, fused
from contentrope.kernels import address
from contentrope.kernels.attention import decode, ops
from contentrope.rotary import rotation_of
from tests.support.tiles import tried

LENGTH = 331
"""No multiple of any tile, and several of each: inner loops load ahead."""


def run_all(device: str) -> list[torch.Tensor]:
    """The gradients they give."""
    found = [
        *read(device, heads=2, kv_heads=2, head_dim=64),
        *read(device, heads=4, kv_heads=2, head_dim=96, padded=True, memory=True, competition=1.0),
        *read(device, heads=2, kv_heads=2, head_dim=64, window=100),
        *read(device, heads=4, kv_heads=2, head_dim=96, padded=True, memory=True, competition=1.0, window=100),
        *read(device, heads=2, kv_heads=2, head_dim=32, competition=1.0, dtype=torch.float32, window=40),
        *read(device, heads=2, kv_heads=2, head_dim=64, window=LENGTH),
        *read(device, heads=2, kv_heads=2, head_dim=32, competition=1.0, dtype=torch.float32),
        *summed_up(device),
    ]
    with mock.patch.object(address, "MANY_FROM", 0):
        found += summed_up(device)
    with mock.patch.object(ops, "FAR_WORTH", 2), mock.patch.object(ops, "_library_can", return_value=True):
        found += read(device, heads=2, kv_heads=2, head_dim=64, longest=16)
        return [*found, *read(device, heads=2, kv_heads=2, head_dim=64, longest=16, window=40)]


def read(
    device: str,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    padded: bool = False,
    memory: bool = False,
    window: int = 0,
    competition: float = 0.0,
    longest: int = 256,
    dtype: torch.dtype = torch.bfloat16,
) -> list[torch.Tensor]:
    """One layer, its queries, keys and values rotated and read."""
    ids = torch.arange(LENGTH, device=device)[None] % 7
    some = (torch.arange(LENGTH, device=device) < LENGTH // 2)[None]
    marks = {"valid": some if padded else None, "memory": some if memory else None}
    units = cr.segment(ids, cr.Terminators({0}), max_length=longest, **marks)
    angles = torch.randn(1, LENGTH, kv_heads, head_dim // 2, device=device, requires_grad=True)
    local, near, far_query = (rotation_of(torch.randn(1, LENGTH, 1, head_dim // 2, device=device)) for _ in range(3))
    versions = {"near": near, "far_query": far_query} if window else {}
    rotations = fused.rotations_of(local, angles, units.unit, units.closes, **versions)
    given = torch.randn(1, LENGTH, heads + 2 * kv_heads, head_dim, device=device).to(dtype).requires_grad_()
    rule = PairRule.among(units, window)
    out = fused.attend_packed(given, kv_heads, rotations, "half", rule, competition=competition, scale=0.1)
    out.sum().backward()
    assert given.grad is not None
    assert angles.grad is not None
    return [given.grad, angles.grad]


def summed_up(device: str) -> list[torch.Tensor]:
    """The descriptors and addresses of units."""
    embedded = torch.randn(1, LENGTH, 192, device=device, requires_grad=True)
    slot, angles = torch.arange(LENGTH, device=device)[None] // 8, torch.randn(1, LENGTH, 1, 48, device=device)
    norm = torch.ones(192, device=device), torch.zeros(192, device=device), 1e-5
    normed, *_ = address.unit_descriptors(embedded, slot, angles.cos(), angles.sin(), *norm, 96, False)
    weight, bias = (torch.randn(*size, device=device, requires_grad=True) for size in ((96, 192), (96,)))
    address.unit_angles(normed, slot, weight, bias).sum().backward()
    assert embedded.grad is not None
    assert weight.grad is not None
    assert bias.grad is not None
    return [embedded.grad, weight.grad, bias.grad]


def single_tokens(device: str) -> list[torch.Tensor]:
    """What single tokens read of a cache; these kernels have no gradient."""
    found = []
    sizes = (1, 64, False, torch.bfloat16), (3, 128, True, torch.bfloat16), (2, 64, True, torch.float32)
    for group, dim, with_all, dtype in sizes:
        query, far_query = torch.randn(2, 2, 2 * group, 1, dim, device=device).to(dtype)
        key, value = torch.randn(2, 2, 2, LENGTH, dim, device=device).to(dtype)
        begin = torch.tensor([[LENGTH // 2], [0]], device=device)
        marks = torch.arange(2 * LENGTH, device=device).view(2, LENGTH) % 3 == 0
        extra = (torch.ones(2, 2 * group, 1, device=device), marks, marks.flip(1)) if with_all else (None,) * 3
        found.append(decode.attend_one(query, far_query, key, value, begin, *extra, 0.1))
        near, far = (rotation_of(torch.randn(1, 1, 2, dim // 2 - 1, device=device)) for _ in range(2))
        qkv = torch.randn(2, 1, 2 * group + 4, dim, device=device).to(dtype)
        found.append(decode.attend_next(qkv, near, far, key, value, begin, *extra, 0.1, with_all))
    return found


def main(tiles: int) -> None:
    """On a GPU, with this many of the tiles that may be chosen, one after the other."""
    if not torch.cuda.is_available():
        sys.exit("this program runs kernels on a GPU, and there is none")
    torch.manual_seed(0)
    for number in range(tiles):
        with tried(lambda kernel, every, n=number: [every[n % len(every)]]):
            gradients = [*run_all("cuda"), *single_tokens("cuda")]
        assert all(bool(x.isfinite().all()) for x in gradients)
    print(f"{tiles} times {len(gradients)} results, all of finite numbers")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
