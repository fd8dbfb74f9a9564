"""Where units end. A rule is a scan over the tokens, so stream and batch agree by construction."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from contentrope.config import require_positive
from contentrope.errors import InputError

# Up to here a comparison per id is faster than a lookup.
_FEW_IDS = 4
_LARGEST_ID = 2**31 - 1


@runtime_checkable
class Rule(Protocol):
    """Says for each token whether it ends its unit, from the tokens up to it and nothing later.

    The state is an int64 tensor with one row per sequence and as many columns as the rule likes, maybe none.

    A rule that is to be saved with a model has a third method, ``describe()``: see `descriptions.py`.
    """

    def initial(self, batch_size: int, device: torch.device | str) -> Int[Tensor, "batch k"]:
        """The state before the first token."""

    def scan(
        self, ids: Int[Tensor, "batch seq"], valid: Bool[Tensor, "batch seq"], state: Int[Tensor, "batch k"]
    ) -> tuple[Bool[Tensor, "batch seq"], Int[Tensor, "batch k"]]:
        """The ends of these tokens and the state after them. Padding ends nothing and is not text."""


@dataclass(frozen=True, init=False)
class Terminators:
    """A unit ends with any of these token ids. With none, only the maximum length ends a unit.

    >>> rule = Terminators({10})
    >>> ids = torch.tensor([[7, 10, 8]])
    >>> ends, _ = rule.scan(ids, torch.ones_like(ids, dtype=torch.bool), rule.initial(1, "cpu"))
    >>> ends.tolist()
    [[False, True, False]]
    """

    ids: tuple[int, ...]
    _table: Int[Tensor, "ids"] = field(repr=False, compare=False)

    def __init__(self, ids: Iterable[int]) -> None:
        object.__setattr__(self, "ids", token_ids("terminators", ids))
        object.__setattr__(self, "_table", torch.tensor(self.ids, dtype=torch.int64))

    def initial(self, batch_size: int, device: torch.device | str) -> Int[Tensor, "batch 0"]:
        return torch.zeros(batch_size, 0, dtype=torch.int64, device=device)

    def describe(self) -> dict[str, Any]:
        return {"ids": list(self.ids)}

    def scan(
        self, ids: Int[Tensor, "batch seq"], valid: Bool[Tensor, "batch seq"], state: Int[Tensor, "batch 0"]
    ) -> tuple[Bool[Tensor, "batch seq"], Int[Tensor, "batch 0"]]:
        return self.found_in(ids) & valid, state

    def found_in(self, ids: Int[Tensor, "batch seq"]) -> Bool[Tensor, "batch seq"]:
        if not self.ids:
            return torch.zeros_like(ids, dtype=torch.bool)
        if len(self.ids) > _FEW_IDS:
            return torch.isin(ids, self._table.to(ids.device))
        found = ids == self.ids[0]
        for other in self.ids[1:]:
            found = found | (ids == other)
        return found


@dataclass(frozen=True)
class FixedLength:
    """Every n-th token ends a unit.

    >>> rule = FixedLength(2)
    >>> ids = torch.tensor([[7, 7, 7]])
    >>> ends, state = rule.scan(ids, torch.ones_like(ids, dtype=torch.bool), rule.initial(1, "cpu"))
    >>> ends.tolist(), state.tolist()
    ([[False, True, False]], [[1]])
    """

    n: int

    def __post_init__(self) -> None:
        require_positive("n", self.n)

    def describe(self) -> dict[str, Any]:
        return {"n": self.n}

    def initial(self, batch_size: int, device: torch.device | str) -> Int[Tensor, "batch 1"]:
        return torch.zeros(batch_size, 1, dtype=torch.int64, device=device)

    def scan(
        self, ids: Int[Tensor, "batch seq"], valid: Bool[Tensor, "batch seq"], state: Int[Tensor, "batch 1"]
    ) -> tuple[Bool[Tensor, "batch seq"], Int[Tensor, "batch 1"]]:
        ends = valid & ((state + valid.cumsum(1)) % self.n == 0)
        return ends, (state + valid.sum(1, keepdim=True)) % self.n


@dataclass(frozen=True, eq=False)
class Boundaries:
    """Ends given by the caller, one per column, padding columns included.

    >>> rule = Boundaries(torch.tensor([[False, True, True]]))
    >>> ids = torch.tensor([[7, 7]])
    >>> ends, state = rule.scan(ids, torch.ones_like(ids, dtype=torch.bool), rule.initial(1, "cpu"))
    >>> ends.tolist()
    [[False, True]]
    """

    ends: Bool[Tensor, "batch columns"]

    def __post_init__(self) -> None:
        if self.ends.dim() != 2 or self.ends.dtype != torch.bool:
            raise InputError(
                f"ends is {self.ends.dtype} of shape {tuple(self.ends.shape)}: pass a bool mask (batch, seq)"
            )

    def describe(self) -> dict[str, Any]:
        return {"shape": list(self.ends.shape), "fingerprint": fingerprint(self.ends)}

    def initial(self, batch_size: int, device: torch.device | str) -> Int[Tensor, "batch 2"]:
        """Columns consumed, and the row of the mask: a reordered beam keeps reading its own row."""
        if batch_size != self.ends.shape[0]:
            raise InputError(
                f"ends have shape {tuple(self.ends.shape)}, the batch {batch_size} rows: pass one row each"
            )
        rows = torch.arange(batch_size, device=device)
        return torch.stack([torch.zeros_like(rows), rows], dim=1)

    def scan(
        self, ids: Int[Tensor, "batch seq"], valid: Bool[Tensor, "batch seq"], state: Int[Tensor, "batch 2"]
    ) -> tuple[Bool[Tensor, "batch seq"], Int[Tensor, "batch 2"]]:
        consumed, row = state[:, :1], state[:, 1:]
        columns = consumed + torch.arange(ids.shape[1], device=ids.device)
        self._check_columns(columns)
        after = torch.cat([consumed + ids.shape[1], row], dim=1)
        return self.ends.to(ids.device)[row, columns] & valid, after

    def _check_columns(self, columns: Int[Tensor, "batch seq"]) -> None:
        if torch.compiler.is_compiling() or not columns.numel():
            return
        needed = int(columns.max()) + 1
        if needed > self.ends.shape[1]:
            raise InputError(
                f"ends have shape {tuple(self.ends.shape)}, ids reach {needed} columns: pass a longer mask, "
                "or give the new tokens' ends to Segmenter.advance(ends=...)"
            )


def token_ids(name: str, values: Iterable[int]) -> tuple[int, ...]:
    """The distinct ids, sorted.

    >>> token_ids("terminators", [10, 2, 10])
    (2, 10)
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InputError(f"{name} is {values!r}: pass a set of token ids, e.g. {{10}}")
    distinct = set(values)
    for value in distinct:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST_ID:
            raise InputError(f"{name} contains {value!r}: token ids are ints from 0 to {_LARGEST_ID}")
    return tuple(sorted(distinct))


def fingerprint(*tables: Tensor) -> str:
    """The same for the same shapes and numbers, whatever their device.

    >>> fingerprint(torch.tensor([True])) == fingerprint(torch.tensor([False]))
    False
    """
    digest = hashlib.sha256()
    for table in tables:
        digest.update(str(tuple(table.shape)).encode())
        digest.update(table.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]
