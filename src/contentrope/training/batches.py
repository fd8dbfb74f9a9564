"""What an update sees: a batch that depends on the seed and the step alone.

So a run can stop and resume anywhere, and several processes can each take their share of the same batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from contentrope.errors import InputError

IGNORED = -100
"""Target of a token that is not scored."""


@dataclass(frozen=True)
class Batch:
    """The model's arguments by name, ``ids`` among them, and the token to predict at every place.

    >>> Batch({"ids": torch.tensor([[5, 6]])}, torch.tensor([[6, IGNORED]])).scored
    tensor(1)
    """

    inputs: Mapping[str, Tensor]
    targets: Int[Tensor, "rows seq"]
    weights: Float[Tensor, "rows seq"] | None = None
    """How much each target counts in the loss; None: all alike."""

    @property
    def scored(self) -> Tensor:
        """What the loss is divided by: the number of targets that count, each by its weight."""
        counted = self.targets != IGNORED
        return counted.sum() if self.weights is None else (self.weights * counted).sum()

    def parts(self, count: int) -> Iterator[Batch]:
        """The rows in ``count`` equal shares."""
        share = -(-len(self.targets) // count)
        for first in range(0, len(self.targets), share):
            yield self.map(itemgetter(slice(first, first + share)))

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with every tensor changed."""
        weights = None if self.weights is None else change(self.weights)
        return Batch({name: change(x) for name, x in self.inputs.items()}, change(self.targets), weights)

    def copy_from(self, other: Batch) -> None:
        """Overwrite this batch in place: a CUDA graph reads its inputs from fixed addresses."""
        self.targets.copy_(other.targets)
        if self.weights is not None and other.weights is not None:
            self.weights.copy_(other.weights)
        for name, x in self.inputs.items():
            x.copy_(other.inputs[name])

    @staticmethod
    def joined(batches: Sequence[Batch]) -> Batch:
        """The rows of several batches, which have the same arguments. Where some have weights, the others count 1."""
        first = batches[0]
        weights = None
        if any(batch.weights is not None for batch in batches):
            ones = torch.ones_like
            weights = torch.cat(
                [ones(b.targets, dtype=torch.float32) if b.weights is None else b.weights for b in batches]
            )
        inputs = {name: torch.cat([batch.inputs[name] for batch in batches]) for name in first.inputs}
        return Batch(inputs, torch.cat([batch.targets for batch in batches]), weights)


@runtime_checkable
class Batches(Protocol):
    """A source of batches. The same step and seed give the same batch, on any device, in any process."""

    def at(self, step: int, rows: int, seed: int) -> Batch: ...


class Windows:
    """Windows from random places of one long text; every token but the first is a target.

    >>> batch = Windows(torch.arange(100), length=4).at(step=3, rows=2, seed=0)
    >>> bool((batch.inputs["ids"] + 1 == batch.targets).all()), batch.targets.shape
    (True, torch.Size([2, 4]))
    """

    def __init__(self, data: Int[Tensor, "tokens"], length: int, device: torch.device | str = "cpu") -> None:
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise InputError(f"length must be an integer of at least 1, got {length!r}")
        if len(data) < length + 1:
            raise InputError(f"the data has {len(data)} tokens; length {length} needs {length + 1}")
        self.data = data.to(device)
        self.length = length
        self.offsets = torch.arange(length + 1, device=device)

    def at(self, step: int, rows: int, seed: int) -> Batch:
        # Drawn on the CPU, so that every device sees the same windows.
        generator = torch.Generator().manual_seed(mixed_seed(seed, step, 0))
        starts = torch.randint(len(self.data) - self.length, (rows, 1), generator=generator)
        windows = self.data[starts.to(self.data.device) + self.offsets].long()
        return Batch({"ids": windows[:, :-1]}, windows[:, 1:])


def mixed_seed(*numbers: int) -> int:
    """One well-spread seed out of several small numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
