"""Rotations in the 2x2 blocks of RoPE: frequencies, cosines and sines, and the one place that rotates a vector.

A rotation is kept as cosines and sines, in float32 at least, whatever the model's dtype: bfloat16 cannot tell
position 257 from 256. Composing two rotations is one complex product.

Shapes: batch, seq (tokens), heads, pairs (rotating pairs of a head; partial rotary leaves dimensions over).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from contentrope.config import PairLayout, RotaryConfig


class Rotation(NamedTuple):
    """One rotation per token, head and pair; sizes of one broadcast."""

    cos: Float[Tensor, "batch seq heads pairs"]
    sin: Float[Tensor, "batch seq heads pairs"]
    angles: Float[Tensor, "batch seq heads pairs"] | None = None
    """Learned angles contained in it. Their gradient is taken here and not through cosine and sine: half the work."""

    def then(self, other: Rotation) -> Rotation:
        """Both rotations, one after the other. They share their planes, so the order does not matter."""
        learned = [r.angles for r in (self, other) if r.angles is not None]
        return Rotation(
            self.cos * other.cos - self.sin * other.sin,
            self.sin * other.cos + self.cos * other.sin,
            sum(learned[1:], learned[0]) if learned else None,
        )

    def only_where(self, mask: Bool[Tensor, "batch seq"]) -> Rotation:
        """This rotation where ``mask`` holds, the identity elsewhere."""
        chosen = mask[..., None, None]
        return Rotation(
            torch.where(chosen, self.cos, 1.0),
            torch.where(chosen, self.sin, 0.0),
            None if self.angles is None else torch.where(chosen, self.angles, 0.0),
        )


def rotation_of(angles: Float[Tensor, "batch seq heads pairs"]) -> Rotation:
    if not _recorded() or not angles.requires_grad:
        return Rotation(angles.cos(), angles.sin())
    fixed = angles.detach()
    return Rotation(fixed.cos(), fixed.sin(), angles)


def _recorded() -> bool:
    """Whether rotations bring their own backward pass.

    A compiler derives and fuses it itself; before torch 2.13 it lost the gradient of a rotation inside a Function.
    """
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The dtype for angles and sums next to values of ``dtype``."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def inverse_frequencies(config: RotaryConfig, heads: int, head_dim: int) -> Float[Tensor, "heads pairs"]:
    """Radians per position, float64: the same row for every head (shape (1, pairs)) or all heads' own.

    ``model_wide`` deals one geometric series of heads x pairs frequencies out to the heads in order.

    >>> inverse_frequencies(RotaryConfig(base=16.0), heads=2, head_dim=4).tolist()
    [[1.0, 0.25]]
    >>> inverse_frequencies(RotaryConfig(base=16.0, frequencies="model_wide"), heads=2, head_dim=4).tolist()
    [[1.0, 0.5], [0.25, 0.125]]
    """
    pairs = config.pair_count(head_dim)
    rows = heads if config.frequencies == "model_wide" else 1
    exponents = torch.arange(rows * pairs, dtype=torch.float64) / (rows * pairs)
    return (config.base**-exponents).view(rows, pairs)


class PositionRotations(nn.Module):
    """Integer position -> rotation, computed in float64.

    Frequencies are kept as the bits of a float64, in an integer buffer: they follow the model to its device, but
    ``model.to(torch.bfloat16)`` cannot round them.

    >>> rotations = PositionRotations(torch.tensor([[1.0, 0.5]], dtype=torch.float64))
    >>> rotations.at(torch.tensor([[0, 4]]), torch.float32, bound=5).sin.shape
    torch.Size([1, 2, 1, 2])
    """

    frequency_bits: Tensor

    def __init__(self, inverse_frequency: Float[Tensor, "heads pairs"], amplitude: float = 1.0) -> None:
        super().__init__()
        self.amplitude = amplitude
        self.register_buffer("frequency_bits", inverse_frequency.double().view(torch.int64), persistent=False)
        self._tables: dict[tuple[torch.device, torch.dtype, int], Rotation] = {}

    @property
    def inverse_frequency(self) -> Float[Tensor, "heads pairs"]:
        return self.frequency_bits.view(torch.float64)

    def at(self, positions: Int[Tensor, "batch seq"], dtype: torch.dtype, *, bound: int, origin: int = 0) -> Rotation:
        """The rotations of positions that all lie below ``bound``, counted from ``origin``."""
        if torch.compiler.is_compiling():
            return Rotation(*position_rotations(origin + positions, self.inverse_frequency, self.amplitude, dtype))
        key = positions.device, dtype, origin
        table = self._tables.get(key)
        if table is None or len(table.cos) < bound:
            # Powers of two: a table that grows with the sequence is computed a few times, not at every step.
            length = 1 << (max(bound, 1) - 1).bit_length()
            every = origin + torch.arange(length, device=positions.device)
            table = Rotation(*position_rotations(every, self.inverse_frequency, self.amplitude, dtype))
            self._tables[key] = table
        return Rotation(table.cos[positions], table.sin[positions])


@torch.library.custom_op(
    "contentrope::position_rotations",
    mutates_args=(),
    schema="(Tensor positions, Tensor frequency, float amplitude, ScalarType dtype) -> (Tensor, Tensor)",
)
def position_rotations(
    positions: Int[Tensor, "*tokens"], frequency: Float[Tensor, "heads pairs"], amplitude: float, dtype: torch.dtype
) -> tuple[Float[Tensor, "*tokens heads pairs"], Float[Tensor, "*tokens heads pairs"]]:
    """Cosines and sines, by way of float64. One operator, as a compiler would compute them again in every layer."""
    angles = positions.double()[..., None, None] * frequency
    return (amplitude * angles.cos()).to(dtype), (amplitude * angles.sin()).to(dtype)


@position_rotations.register_fake
def _(positions: Tensor, frequency: Tensor, amplitude: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    shape = (*positions.shape, *frequency.shape)
    return positions.new_empty(shape, dtype=dtype), positions.new_empty(shape, dtype=dtype)


def rotate(
    x: Float[Tensor, "*layers batch seq heads head_dim"], rotation: Rotation, layout: PairLayout = "half"
) -> Float[Tensor, "*layers batch seq heads head_dim"]:
    """Each pair of ``x`` rotated by its angle; dimensions that belong to no pair pass through; the dtype is kept.

    With fewer rotations than heads (grouped queries), neighbouring heads share one.

    >>> quarter = rotation_of(torch.full((1, 1, 1, 1), torch.pi / 2))
    >>> rotate(torch.tensor([[[[1.0, 0.0, 7.0]]]]), quarter).round(decimals=6).tolist()
    [[[[-0.0, 1.0, 7.0]]]]
    """
    cos, sin, angles = rotation
    groups = cos.shape[-2]
    shared = groups not in (1, x.shape[-2])
    if shared:
        x = x.unflatten(-2, (groups, -1))
        cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
        angles = angles.unsqueeze(-2) if angles is not None else None
    # Cosines that carry a gradient themselves were made by hand or under a compiler: differentiate plainly.
    own_backward = _recorded() and not cos.requires_grad
    rotated = _Rotate.apply(x, cos, sin, angles, layout) if own_backward else _rotated(x, cos, sin, layout)
    return rotated.flatten(-3, -2) if shared else rotated


def _halves(x: Tensor, pairs: int, layout: PairLayout) -> tuple[Tensor, Tensor]:
    if layout == "half":
        return x[..., :pairs], x[..., pairs : 2 * pairs]
    return x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]


class _Rotate(Function):
    """out = (a cos - b sin, b cos + a sin); a rotation by d more would change it by d * (-second half, first half)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, angles: Tensor | None, layout: PairLayout) -> Tensor:
        out = _rotated(x, cos, sin, layout)
        learned = angles is not None and angles.requires_grad
        ctx.save_for_backward(cos, sin, out if learned else None)
        ctx.layout = layout
        ctx.angle_shape = angles.shape if angles is not None else None
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin, out = ctx.saved_tensors
        grad_x = _rotated(grad, cos, -sin, ctx.layout) if ctx.needs_input_grad[0] else None
        if out is None:
            return grad_x, None, None, None, None
        first, second = _halves(out.to(cos.dtype), cos.shape[-1], ctx.layout)
        grad_first, grad_second = _halves(grad.to(cos.dtype), cos.shape[-1], ctx.layout)
        grad_angles = torch.addcmul(grad_second * first, grad_first, second, value=-1)
        return grad_x, None, None, grad_angles.sum_to_size(ctx.angle_shape), None


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, layout: PairLayout) -> Tensor:
    pairs = cos.shape[-1]
    a, b = _halves(x.to(cos.dtype), pairs, layout)
    first = torch.addcmul(a * cos, b, sin, value=-1)
    second = torch.addcmul(b * cos, a, sin)
    if layout == "interleaved":
        rotated = torch.stack((first, second), dim=-1).flatten(-2)
    else:
        rotated = torch.cat((first, second), dim=-1)
    rotated = rotated.to(x.dtype)
    return rotated if 2 * pairs == x.shape[-1] else torch.cat((rotated, x[..., 2 * pairs :]), dim=-1)
