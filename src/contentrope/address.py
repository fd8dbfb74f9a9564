"""Addresses of completed units: from their content, at random (the paper's control), or none.

The content address of a unit e is ``W LN(z_e)``, one angle per rotary pair and key/value head, where the descriptor
``z_e`` is the mean over the unit of its input embeddings, each rotated by its local position. Cost O(tokens x dim).

Shapes: slots are the units one call touches, in order; a call of T tokens touches at most T.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from contentrope.rotary import at_least_float32
from contentrope.stacked import layer_norm, linear
from contentrope.units import Units


class UnitSums(NamedTuple):
    """Sums of rotated embeddings by slot, and of the unit that is open after the last token."""

    total: Float[Tensor, "batch slots dim"]
    tokens: Float[Tensor, "batch slots"]
    open_total: Float[Tensor, "batch dim"]


def sum_by_unit(
    rotated: Float[Tensor, "batch seq dim"],
    units: Units,
    slot: Int[Tensor, "batch seq"],
    carried: tuple[Float[Tensor, "batch dim"], Int[Tensor, "batch"]] | None = None,
) -> UnitSums:
    """One scatter-add, or on a GPU its deterministic equal.

    ``carried`` is the sum and token count of the unit already open before this call (slot 0).

    The number of slots is the number of tokens, whatever the boundaries: shapes, and with them the rounding of
    every product that follows, must not depend on tokens still to come.
    """
    _, seq, dim = rotated.shape
    if seq == 1 and carried is not None and not units.padded:
        return _add_one(rotated, units, carried)
    total, count = sum_by_slot(rotated, slot, units.valid, units.padded, carried)
    open_slot = (slot[:, -1] + units.closes[:, -1])[:, None, None].expand(-1, 1, dim)
    return UnitSums(total[:, :seq], count[:, :seq], total.gather(1, open_slot)[:, 0])


def sum_by_slot(
    rotated: Float[Tensor, "batch seq dim"],
    slot: Int[Tensor, "batch seq"],
    valid: Bool[Tensor, "batch seq"],
    padded: bool,
    carried: tuple[Float[Tensor, "batch dim"], Int[Tensor, "batch"]] | None = None,
) -> tuple[Float[Tensor, "batch slots dim"], Float[Tensor, "batch slots"]]:
    """Sums and token counts of one slot more than there are tokens: where the unit goes that begins after the last."""
    batch, seq, dim = rotated.shape
    total = rotated.new_zeros(batch, seq + 1, dim)
    count = rotated.new_zeros(batch, seq + 1)
    if carried is not None:
        total[:, 0], count[:, 0] = carried[0], carried[1].to(count.dtype)
    if padded:
        rotated = torch.where(valid[..., None], rotated, 0.0)
    if rotated.is_cuda:
        total = total + sum_runs(rotated, slot)
    else:
        total = total.scatter_add(1, slot[..., None].expand_as(rotated), rotated)
    return total, count.scatter_add(1, slot, valid.to(count.dtype))


def _add_one(rotated: Tensor, units: Units, carried: tuple[Tensor, Tensor]) -> UnitSums:
    """The same for a single token after others: decoding should not pay for slots."""
    total = carried[0][:, None] + rotated
    tokens = carried[1].to(total.dtype)[:, None] + 1
    return UnitSums(total, tokens, torch.where(units.closes, 0.0, total[:, 0]))


@torch.library.custom_op("contentrope::sum_runs", mutates_args=(), schema="(Tensor x, Tensor slot) -> Tensor")
def sum_runs(x: Tensor, slot: Tensor) -> Tensor:
    """Sum x (batch, seq, dim) over runs of equal slot (batch, seq), non-decreasing; (batch, seq + 1, dim).

    A GPU's scatter-add sums in any order, so two calls differ in the last bit, and so would logits that must not
    change. Reducing whole runs is as cheap and always the same.
    """
    batch, seq, dim = x.shape
    lengths = torch.zeros(batch, seq + 1, dtype=torch.int64, device=x.device)
    lengths.scatter_add_(1, slot, torch.ones_like(slot))
    flat = x.reshape(batch * seq, dim)
    total = torch.segment_reduce(flat, "sum", lengths=lengths.flatten(), axis=0, unsafe=True, initial=0.0)
    return total.view(batch, seq + 1, dim)


@sum_runs.register_fake
def _(x: Tensor, slot: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1] + 1, x.shape[2])


def _keep_slot(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _spread(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    (slot,) = ctx.saved_tensors
    return grad.gather(1, slot[..., None].expand(-1, -1, grad.shape[-1])), None


sum_runs.register_autograd(_spread, setup_context=_keep_slot)


class ContentAddress(nn.Module):
    """``W LN(mean)``: zero at first, so that a fresh model starts without addresses.

    >>> address = ContentAddress(dim=8, heads=2, pairs=2)
    >>> address(torch.randn(1, 3, 8), torch.ones(1, 3)).abs().max().item()
    0.0
    """

    def __init__(self, dim: int, heads: int, pairs: int) -> None:
        super().__init__()
        self.shape = (heads, pairs)
        self.norm = nn.LayerNorm(dim)
        self.project = nn.Linear(dim, heads * pairs)
        nn.init.zeros_(self.project.weight)
        nn.init.zeros_(self.project.bias)

    def forward(
        self, total: Float[Tensor, "batch slots dim"], count: Float[Tensor, "batch slots"]
    ) -> Float[Tensor, "batch slots heads pairs"]:
        wide = at_least_float32(total.dtype)
        mean = total.to(wide) / count.to(wide).clamp(min=1)[..., None]
        norm = self.norm
        with torch.autocast(mean.device.type, enabled=False):
            normed = layer_norm(mean, norm.weight.to(wide), norm.bias.to(wide), norm.eps)
        return self.angles(normed)

    def angles(self, normed: Float[Tensor, "batch slots dim"]) -> Float[Tensor, "batch slots heads pairs"]:
        """The addresses of units whose descriptors are normalised already."""
        # Autocast would do the projection in bfloat16; angles need float32.
        with torch.autocast(normed.device.type, enabled=False):
            angles = linear(normed, self.project.weight.to(normed.dtype), self.project.bias.to(normed.dtype))
        return angles.unflatten(-1, self.shape)


def random_angles(
    seed: Int[Tensor, "batch"], unit: Int[Tensor, "batch seq"], heads: int, pairs: int
) -> Float[Tensor, "batch seq heads pairs"]:
    """Standard normal angles that depend on the row's seed and the unit's number alone.

    A counter-based draw: it does not matter how many units follow or in which chunks they arrive, so the random
    scheme is causal and streams like the others.

    >>> first = random_angles(torch.tensor([3]), torch.tensor([[0, 0, 1]]), heads=1, pairs=2)
    >>> bool((first[:, 0] == first[:, 1]).all()), bool((first[:, 1] == first[:, 2]).any())
    (True, False)
    """
    key = hashed(seed[:, None] + hashed(unit))
    counters = torch.arange(2 * heads * pairs, device=unit.device)
    uniform = to_unit_interval(hashed(key[..., None] + hashed(counters)))
    radius, angle = uniform.chunk(2, dim=-1)
    normal = (-2 * torch.log1p(-radius)).sqrt() * torch.cos(2 * math.pi * angle)
    return normal.unflatten(-1, (heads, pairs))


def random_ranks(seed: Int[Tensor, "batch"], count: int) -> Float[Tensor, "batch count"]:
    """Uniform draws for 0..count-1, one row per seed."""
    counters = torch.arange(count, device=seed.device)
    return to_unit_interval(hashed(hashed(seed)[:, None] + counters))


def hashed(x: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """A 63-bit integer hash (multiply, xor-shift); int64 products wrap around."""
    # One operator for the compiler, which would count in int32: the constants do not fit into that.
    return _hash_operator(x) if torch.compiler.is_compiling() else _hash(x)


def _hash(x: Tensor) -> Tensor:
    x = (x + 0x1E3779B97F4A7C15) & 0x7FFFFFFFFFFFFFFF
    for factor, shift in ((0x3F58476D1CE4E5B9, 30), (0x14D049BB133111EB, 27)):
        x = ((x ^ (x >> shift)) * factor) & 0x7FFFFFFFFFFFFFFF
    return x ^ (x >> 31)


_hash_operator = torch.library.custom_op("contentrope::hash", _hash, mutates_args=(), schema="(Tensor x) -> Tensor")
_hash_operator.register_fake(torch.empty_like)


def to_unit_interval(hashed: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The top 53 of 63 bits as a float64 in [0, 1)."""
    return (hashed >> 10).double() * 2.0**-53
