"""Inputs of addressed attention for every situation a backend must get right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import contentrope as cr


@dataclass(frozen=True)
class Case:
    """Lengths are odd, beyond one tile and one block, and at their edges."""

    name: str
    seq: int = 149
    batch: int = 2
    heads: int = 2
    kv_heads: int = 2
    head_dim: int = 16
    pairs: int = 8
    end_rate: float = 0.1
    max_length: int = 256
    padding: str = "none"
    memory_rate: float = 0.0
    competition: str = "none"
    layout: str = "half"
    window: int = 0


CASES = [
    Case("plain"),
    Case("one token", seq=1),
    Case("one-token units", seq=70, end_rate=1.0),
    Case("one unit, completed at the end", seq=65, end_rate=0.0, max_length=65),
    Case("no completed unit", seq=131, end_rate=0.0),
    Case("units longer than a block", seq=300, end_rate=0.0, max_length=140, batch=1),
    Case("whole blocks", seq=256, batch=1),
    Case("competition", competition="number"),
    Case("competition per head", competition="per head", heads=4, kv_heads=2),
    Case("grouped queries", heads=6, kv_heads=2),
    Case("interleaved, partial", pairs=5, layout="interleaved"),
    Case("left padding", padding="left", competition="number"),
    Case("right padding", padding="right"),
    Case("holes", padding="holes"),
    Case("a row of padding", padding="row"),
    Case("memory units", memory_rate=0.5, end_rate=0.2),
    Case("all together", padding="left", memory_rate=0.4, competition="per head", heads=4, kv_heads=1),
    Case("window", window=30),
    Case("window of one token", window=1, seq=70),
    Case("window of the whole text", window=500, competition="number"),
    Case("window in whole blocks", seq=256, batch=1, window=64, competition="per head"),
    Case("window within long units", seq=300, end_rate=0.0, max_length=90, batch=1, window=50),
    Case("window, one-token units", seq=70, end_rate=1.0, window=9, competition="number"),
    Case("window, competition per head", competition="per head", heads=4, kv_heads=2, window=20),
    Case("window, interleaved, partial", pairs=5, layout="interleaved", window=25),
    Case("window, left padding", padding="left", competition="number", window=20),
    Case("window, right padding", padding="right", window=40),
    Case("window, holes", padding="holes", competition="number", window=20),
    Case("window, a row of padding", padding="row", window=20),
    Case("window, memory units", memory_rate=0.5, end_rate=0.2, window=30, competition="number"),
    Case(
        "window, all together", padding="left", memory_rate=0.4, competition="per head", heads=4, kv_heads=1, window=30
    ),
]


@dataclass
class Inputs:
    q: Tensor
    k: Tensor
    v: Tensor
    angles: Tensor
    competition: float | Tensor
    units: cr.Units
    layout: str
    window: int = 0

    def leaves(self) -> list[Tensor]:
        """Everything a gradient is asked for."""
        learned = [self.competition] if isinstance(self.competition, Tensor) else []
        return [self.q, self.k, self.v, self.angles, *learned]

    def frequencies(self) -> Tensor:
        """Of plain RoPE, which is read within a window."""
        return 100.0 ** -torch.linspace(0, 1, self.angles.shape[-1], dtype=torch.float64)[None]

    def to(self, device: str, dtype: torch.dtype) -> Inputs:
        """The same values elsewhere; angles and the exponent stay float32 at least, as in a model."""
        wide = torch.promote_types(dtype, torch.float32)

        def leaf(x: Tensor, kind: torch.dtype) -> Tensor:
            return x.detach().to(device, kind).requires_grad_()

        return Inputs(
            *(leaf(x, dtype) for x in (self.q, self.k, self.v)),
            leaf(self.angles, wide),
            leaf(self.competition, wide) if isinstance(self.competition, Tensor) else self.competition,
            self.units.to(torch.device(device)),
            self.layout,
            self.window,
        )


def make(case: Case, seed: int = 0) -> Inputs:
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, dtype=torch.float64, generator=generator)

    per_head = normal(case.heads).abs().requires_grad_()
    competition: float | Tensor = {"none": 0.0, "number": 0.7, "per head": per_head}[case.competition]
    return Inputs(
        normal(case.batch, case.heads, case.seq, case.head_dim).requires_grad_(),
        normal(case.batch, case.kv_heads, case.seq, case.head_dim).requires_grad_(),
        normal(case.batch, case.kv_heads, case.seq, case.head_dim).requires_grad_(),
        normal(case.batch, case.seq, case.kv_heads, case.pairs).requires_grad_(),
        competition,
        _units(case, generator),
        case.layout,
        case.window,
    )


def _units(case: Case, generator: torch.Generator) -> cr.Units:
    size = case.batch, case.seq
    ids = (torch.rand(size, generator=generator) >= case.end_rate).long()
    column = torch.arange(case.seq)
    valid = {
        "none": None,
        "left": (column >= torch.arange(case.batch)[:, None] * 9 + 3),
        "right": (column < case.seq - torch.arange(case.batch)[:, None] * 70),
        "holes": torch.rand(size, generator=generator) > 0.2,
        "row": (torch.arange(case.batch) > 0)[:, None].expand(size),
    }[case.padding]
    memory = torch.rand(size, generator=generator) < case.memory_rate if case.memory_rate else None
    return cr.segment(ids, cr.Terminators({0}), max_length=case.max_length, valid=valid, memory=memory)


Attention = Callable[..., Tensor]


def output_and_gradients(
    inputs: Inputs, weight: Tensor, attention: Attention = cr.addressed_attention, **settings: Any
) -> list[Tensor]:
    """The output and the gradient of every leaf, for the loss ``sum(out * weight)``."""
    out = attention(
        inputs.q,
        inputs.k,
        inputs.v,
        inputs.units,
        inputs.angles,
        competition=inputs.competition,
        pairs=inputs.layout,
        window=inputs.window,
        frequencies=inputs.frequencies(),
        **settings,
    )
    grads = torch.autograd.grad((out * weight.to(out)).sum(), inputs.leaves())
    return [out.detach(), *grads]


def worst_relative_errors(found: list[Tensor], exact: list[Tensor]) -> list[float]:
    """Norm of the error over norm of the truth, for each tensor; where the truth is zero, the error per entry."""
    errors = []
    for ours, truth in zip(found, exact, strict=True):
        per_entry = truth.numel() ** 0.5
        size = float(truth.norm())
        error = float((ours.cpu().double() - truth).norm())
        errors.append(error / (size if size > 1e-9 * per_entry else per_entry))
    return errors
