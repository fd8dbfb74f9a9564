"""In which numbers a unit's keys and values are stored: the model's own, or 8-bit integers with scales.

An 8-bit code stands for ``offset + code * scale``. The channels of a key differ much from each other and from zero, but
little from token to token. So each has a scale and an offset of its own, for every ``TOKENS`` tokens. A value has one
scale for all its channels, and no offset. What is read differs from what was computed by half a scale at most, and by
the rounding to the model's dtype.

Scales and offsets are bfloat16, so code times scale is exact in float32, and every device reads the same numbers.

Shapes: slots are layers, their keys or their values; columns are the tokens of one unit, or of several one behind the
other.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Protocol

import torch
from jaxtyping import BFloat16, Float, Int8
from torch import Tensor

from contentrope.errors import InputError

TOKENS = 32
"""So many tokens, or up to twice as many at the end of a unit, share the scale of a channel."""
STEPS = 127
LARGEST = 3e38
"""So that the last step does not lead beyond what bfloat16 holds."""

States = Float[Tensor, "slots kv_heads columns head_dim"]
Parts = tuple[Tensor, ...]


class Precision(Protocol):
    @property
    def parts(self) -> int:
        """How many tensors stand for one."""

    def apart(self, slot: int) -> Hashable:
        """Slots are stored together where this is the same. Of layer n, slot 2n are the keys and 2n + 1 the values."""

    def encode(self, states: States, apart: Hashable) -> Parts:
        """A unit as it is stored; parts of several units are joined along dimension 2."""

    def decode(self, parts: Parts, lengths: Iterable[int], apart: Hashable, dtype: torch.dtype) -> States:
        """Units of these lengths, joined."""


class Full:
    """The model's own numbers."""

    parts = 1

    def apart(self, slot: int) -> Hashable:
        return None

    def encode(self, states: States, apart: Hashable) -> Parts:
        return (states,)

    def decode(self, parts: Parts, lengths: Iterable[int], apart: Hashable, dtype: torch.dtype) -> States:
        return parts[0]


class EightBits:
    """Codes, and scales: of values one for each token; of keys one for each channel, and behind them its offsets."""

    parts = 2

    def apart(self, slot: int) -> Hashable:
        return slot % 2 == 0

    def encode(self, states: States, apart: Hashable) -> Parts:
        exact = _reachable(states.double())
        if not apart:
            codes, scales = _encoded(exact, exact.abs().amax(3, keepdim=True))
            return codes, scales
        coded = [_centred(part) for part in exact.split(_groups(states.shape[2]), dim=2)]
        codes, scales = (torch.cat(parts, dim=2) for parts in zip(*coded, strict=True))
        return codes, scales

    def decode(self, parts: Parts, lengths: Iterable[int], apart: Hashable, dtype: torch.dtype) -> States:
        codes, scales = parts
        exact = torch.float64 if dtype == torch.float64 else torch.float32
        states, scales = codes.to(exact), scales.to(exact)
        if apart:
            columns = torch.tensor(_group_of_each(lengths), device=codes.device)
            scales, offsets = (x.index_select(2, columns) for x in scales.chunk(2, dim=3))
            states.mul_(scales).add_(offsets)
        else:
            states.mul_(scales)
        if dtype == torch.float16:  # the last step may lead beyond what it holds
            states.clamp_(-torch.finfo(dtype).max, torch.finfo(dtype).max)
        return states.to(dtype)


MODEL = "model"
PRECISIONS: dict[str, Precision] = {MODEL: Full(), "int8": EightBits()}


def _groups(tokens: int) -> list[int]:
    """How many tokens of a unit share their scales.

    >>> _groups(5), _groups(100)
    ([5], [32, 32, 36])
    """
    whole = max(tokens // TOKENS, 1) - 1
    return [TOKENS] * whole + [tokens - TOKENS * whole]


def _group_of_each(lengths: Iterable[int]) -> list[int]:
    """Of every column, the number of its group among those of all units."""
    sizes = [size for tokens in lengths for size in _groups(tokens)]
    return [number for number, size in enumerate(sizes) for _ in range(size)]


def _centred(
    states: Float[Tensor, "slots kv_heads tokens head_dim"],
) -> tuple[Int8[Tensor, "slots kv_heads tokens head_dim"], BFloat16[Tensor, "slots kv_heads 1 twice_head_dim"]]:
    low, high = (edge(2, keepdim=True) for edge in (states.amin, states.amax))
    offsets = (low / 2 + high / 2).to(torch.bfloat16)
    states = states - offsets.double()
    codes, scales = _encoded(states, states.abs().amax(2, keepdim=True))
    return codes, torch.cat((scales, offsets), dim=3)


def _encoded(states: States, largest: Tensor) -> tuple[Int8[Tensor, "..."], BFloat16[Tensor, "..."]]:
    """By scales that reach the largest, but for less than half a step; never so small that a device takes them for
    zero."""
    scales = (largest / STEPS).to(torch.bfloat16).clamp(min=torch.finfo(torch.bfloat16).tiny)
    return (states / scales.double()).round().clamp(-STEPS, STEPS).to(torch.int8), scales


def _reachable(states: States) -> States:
    if not bool((states.abs() <= LARGEST).all()):
        raise InputError(
            "the model computes keys or values that are not finite, or too large for 8 bits with a scale in bfloat16: "
            "open a store with precision='model'"
        )
    return states
