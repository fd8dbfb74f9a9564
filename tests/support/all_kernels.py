"""All kernels, forwards and backwards, with everything they can do. As a program it runs them on a GPU, for tools that
look at a program from outside, such as compute-sanitizer; it is small, as those are slow."""

from __future__ import annotations

import sys
from unittest import mock

import torch

import contentrope as cr
from contentrope.attention import PairRule, fused
from contentrope.kernels import address
from contentrope.kernels.attention import ops
from contentrope.rotary import Rotation
from tests.support.tiles import tried

LENGTH = 331
"""No multiple of any tile, and several of each: inner loops load ahead."""


def run_all(device: str) -> list[torch.Tensor]:
    """The gradients they give."""
    found = [
        *read(device, heads=2, kv_heads=2, head_dim=64),
        *read(device, heads=4, kv_heads=2, head_dim=96, padded=True, memory=True, competition=1.0),
        *read(device, heads=2, kv_heads=2, head_dim=16, spare=(1, 0)),
        *read(device, heads=2, kv_heads=2, head_dim=32, competition=1.0, dtype=torch.float32),
        *summed_up(device),
    ]
    with mock.patch.object(address, "MANY_FROM", 0):
        found += summed_up(device)
    with mock.patch.object(ops, "FAR_WORTH", 2), mock.patch.object(ops, "_library_can", return_value=True):
        return [*found, *read(device, heads=2, kv_heads=2, head_dim=64, longest=16)]


def read(
    device: str,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    padded: bool = False,
    memory: bool = False,
    spare: tuple[int, ...] = (),
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
    place = torch.randn(1, LENGTH, 1, head_dim // 2, device=device)
    rotations = fused.rotations_of(Rotation(place.cos(), place.sin()), angles, units.unit, units.closes)
    given = torch.randn(1, LENGTH, heads + 2 * kv_heads, head_dim, device=device).to(dtype).requires_grad_()
    rule = PairRule.among(units, spare)
    facts = *rotations[:6], False, *fused._pairs(rule, competition, heads)
    out, *_ = ops.packed_attention(given, rotations.angles, *facts, kv_heads, 0.1, fused._longest(rule))
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


def main(tiles: int) -> None:
    """On a GPU, with this many of the tiles that may be chosen, one after the other."""
    if not torch.cuda.is_available():
        sys.exit("this program runs kernels on a GPU, and there is none")
    torch.manual_seed(0)
    for number in range(tiles):
        with tried(lambda kernel, every, n=number: [every[n % len(every)]]):
            gradients = run_all("cuda")
        assert all(bool(x.isfinite().all()) for x in gradients)
    print(f"{tiles} times {len(gradients)} gradients, all of finite numbers")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
