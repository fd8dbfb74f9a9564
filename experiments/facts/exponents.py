"""The exponents of a trained scheme with addresses: read, or changed for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from contentrope.schemes.addressed import PerHead


@contextmanager
def competing_with(scheme: nn.Module, exponent: float) -> Iterator[None]:
    """The exponent of a scheme with addresses, fixed or learned, is another one for a while."""
    (part,) = (part for name, part in scheme.named_modules() if name.rpartition(".")[2] == "competition")
    assert isinstance(part, PerHead)
    own = part.fixed, part.learned
    part.fixed, part.learned = float(exponent), None
    try:
        yield
    finally:
        part.fixed, part.learned = own


def learned_by_head(scheme: nn.Module) -> dict[str, list[list[float]]]:
    """What training made of the exponent and the sharpness, by layer and head; those that are fixed are left out."""
    parts = ((name.rpartition(".")[2], part) for name, part in scheme.named_modules() if isinstance(part, PerHead))
    return {name: part.learned.tolist() for name, part in parts if part.learned is not None}
