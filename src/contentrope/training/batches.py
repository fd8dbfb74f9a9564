"""What an update sees: a batch that depends on the seed and the step alone.

So a run can stop and resume anywhere, and several processes can each take their share of the same batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from contentrope.errors import InputError

IGNORED = -100
"""Target of a token that is not scored."""


@dataclass(frozen=True)
class Batch:
    """The model's arguments by name, ``ids`` among them, and the token to predict at every place."""

    inputs: Mapping[str, Tensor]
    targets: Int[Tensor, "rows seq"]

    def parts(self, count: int) -> Iterator[Batch]:
        """The rows in ``count`` equal shares."""
        split = {name: x.chunk(count) for name, x in self.inputs.items()}
        for index, targets in enumerate(self.targets.chunk(count)):
            yield Batch({name: pieces[index] for name, pieces in split.items()}, targets)

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with every tensor changed."""
        return Batch({name: change(x) for name, x in self.inputs.items()}, change(self.targets))

    def copy_from(self, other: Batch) -> None:
        """Overwrite this batch in place: a CUDA graph reads its inputs from fixed addresses."""
        self.targets.copy_(other.targets)
        for name, x in self.inputs.items():
            x.copy_(other.inputs[name])


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
