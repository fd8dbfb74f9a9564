"""The unit table: for every token, which unit it is in, where, and whether it ends it.

batch, seq: the shape of the token ids. seq+1: *edges*, the value before each column and after the last.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

from contentrope.errors import InputError

# Narrower integers cannot index a table in torch, and uint8 would be read as a mask.
_ID_DTYPES = (torch.int64, torch.int32)


@dataclass(frozen=True)
class Units:
    """Where each token stands among the units. Tensors are shared, never written in place.

    `padded` and `has_memory` say whether the caller gave such a mask at all: reading them needs no GPU sync.
    `ends_any` is a host copy, made when a single token was read after others; None: there is none.

    >>> from contentrope.units import Terminators, segment
    >>> units = segment(torch.tensor([[5, 0, 7, 8, 0, 9]]), Terminators({0}))
    >>> units.unit.tolist(), units.local.tolist()
    ([[0, 0, 1, 1, 1, 2]], [[0, 1, 0, 1, 2, 0]])
    >>> units.completed.tolist()
    [[True, True, True, True, True, False]]
    """

    unit: Int[Tensor, "batch seq"]  # number of ends strictly before this token
    local: Int[Tensor, "batch seq"]  # position inside the unit, counting valid tokens only
    start: Int[Tensor, "batch seq"]  # absolute column of the unit's first token (padding: its own)
    closes: Bool[Tensor, "batch seq"]  # this token ends its unit
    valid: Bool[Tensor, "batch seq"]  # False: padding, in no unit
    memory: Bool[Tensor, "batch seq"]  # the unit sees only itself
    padded: bool = False
    has_memory: bool = False
    offset: int = 0  # absolute column of this table's first column
    longest: int | None = None  # no unit has more tokens; None: no bound
    ends_any: bool | None = None

    @classmethod
    def of(
        cls,
        unit: Int[Tensor, "batch seq"],
        local: Int[Tensor, "batch seq"],
        closes: Bool[Tensor, "batch seq"],
        valid: Bool[Tensor, "batch seq"] | None = None,
        memory: Bool[Tensor, "batch seq"] | None = None,
    ) -> "Units":
        """A checked table from tensors of the caller's own making; `start` is derived.

        >>> closes = torch.tensor([[False, True, False]])
        >>> Units.of(torch.tensor([[0, 0, 1]]), torch.tensor([[0, 1, 0]]), closes).start
        tensor([[0, 0, 2]])
        """
        check_integers("unit", unit)
        check_integers("local", local)
        if local.shape != unit.shape:
            raise InputError(f"local has shape {tuple(local.shape)}: pass the shape of unit, {tuple(unit.shape)}")
        check_masks(unit, closes=closes, valid=valid, memory=memory)
        valid_mask = torch.ones_like(closes) if valid is None else valid
        memory_mask = torch.zeros_like(closes) if memory is None else memory
        local_edges = count_edges(closes & valid_mask, valid_mask, unit.new_zeros(unit.shape[0], 1))
        edges = start_edges(local_edges, torch.zeros_like(local_edges[:, :1]), 0)[:, :-1]
        table = cls(
            unit=unit.long(),
            local=local.long(),
            start=torch.where(valid_mask, edges, torch.arange(unit.shape[1], device=unit.device)),
            closes=closes,
            valid=valid_mask,
            memory=memory_mask,
            padded=valid is not None,
            has_memory=memory is not None,
        )
        if not torch.compiler.is_compiling():
            _check_values(table, local_edges[:, :-1])
        return table

    @property
    def batch_size(self) -> int:
        return self.unit.shape[0]

    @property
    def seq_length(self) -> int:
        return self.unit.shape[1]

    @property
    def count(self) -> Int[Tensor, "batch"]:
        """Number of units completed within this table."""
        return self.closes.sum(1)

    def completes_any(self) -> bool:
        """Whether any unit is ended within this table."""
        return bool(self.closes.any()) if self.ends_any is None else self.ends_any

    @property
    def completed(self) -> Bool[Tensor, "batch seq"]:
        """Whether this token's unit is ended within this table."""
        return self.valid & (self.unit < self.unit[:, :1] + self.count[:, None])

    def lengths(self) -> Int[Tensor, "batch seq"]:
        """Tokens so far of the table's units in order of appearance, 0 where there are no more units.

        >>> closes = torch.tensor([[False, True, False]])
        >>> Units.of(torch.tensor([[0, 0, 1]]), torch.tensor([[0, 1, 0]]), closes).lengths().tolist()
        [[2, 1, 0]]
        """
        reached = torch.where(self.valid, self.local + 1, 0)
        return torch.zeros_like(reached).scatter_reduce(1, self.unit - self.unit[:, :1], reached, "amax")

    def to(self, device: torch.device | str) -> "Units":
        return map_tensors(self, lambda tensor: tensor.to(device))


Record = TypeVar("Record")


def map_tensors(record: Record, change: Callable[[Tensor], Tensor]) -> Record:
    """A dataclass with each of its tensors changed."""
    changed = {name: change(v) if isinstance(v, Tensor) else v for name, v in vars(record).items()}
    return type(record)(**changed)


def count_edges(
    ends: Bool[Tensor, "batch seq"], valid: Bool[Tensor, "batch seq"] | None, open_length: Int[Tensor, "batch 1"]
) -> Int[Tensor, "batch seq+1"]:
    """Valid tokens (None: all are) since the last end; `open_length` of them came before column 0."""
    if valid is None:
        seen = open_length + torch.arange(ends.shape[1] + 1, device=ends.device)
    else:
        seen = open_length + F.pad(valid.cumsum(1), (1, 0))
    at_last_end = F.pad(seen[:, 1:] * ends, (1, 0)).cummax(1).values
    return seen - at_last_end


def start_edges(
    local_edges: Int[Tensor, "batch edges"], open_start: Int[Tensor, "batch 1"], offset: int
) -> Int[Tensor, "batch edges"]:
    """Absolute column where the unit of a valid token at this column begins."""
    columns = torch.arange(offset, offset + local_edges.shape[1], device=local_edges.device)
    return torch.where(local_edges == 0, columns, open_start).cummax(1).values


# --- checks of input: shapes and dtypes always, values where that costs no sync --------------------------------------


def can_be_read(x: Tensor) -> bool:
    """Whether checks may look at values: not while a compiler traces or a CUDA graph is captured."""
    if torch.compiler.is_compiling():
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def may_sync(x: Tensor) -> bool:
    """The same, but not in training on a GPU: a sync at every step would let the GPU run dry. What is wrong in
    training shows in the loss."""
    return can_be_read(x) and not (x.is_cuda and torch.is_grad_enabled())


def check_integers(name: str, values: Tensor) -> None:
    if values.dim() != 2:
        found = f"{name} has shape {tuple(values.shape)}"
        raise InputError(f"{found}: pass (batch, seq), e.g. {name}[None] for one row")
    if values.dtype not in _ID_DTYPES:
        raise InputError(f"{name} has dtype {values.dtype}: pass int64 or int32, e.g. {name}.long()")


def check_masks(tokens: Tensor, **masks: Tensor | None) -> None:
    for name, mask in masks.items():
        if mask is None:
            continue
        if mask.shape != tokens.shape:
            found = f"{name} has shape {tuple(mask.shape)}, the tokens {tuple(tokens.shape)}"
            raise InputError(f"{found}: pass one value per token")
        if mask.dtype != torch.bool:
            raise InputError(f"{name} has dtype {mask.dtype}: pass a bool mask, e.g. {name}.bool()")


def _check_values(table: Units, expected_local: Int[Tensor, "batch seq"]) -> None:
    padding = ~table.valid
    before = F.pad(table.unit, (1, 0))[:, :-1]
    expected_unit = F.pad(table.closes.cumsum(1), (1, 0))[:, :-1]
    # In this order, as each check relies on those before it.
    _refuse(table.unit < before, table.unit, "unit", "units are counted from 0 and never go down")
    _refuse(padding & table.closes, table.closes, "closes", "padding ends no unit")
    _refuse(padding & table.memory, table.memory, "memory", "padding is in no unit")
    _refuse(padding & (table.local != 0), table.local, "local", "padding has local 0")
    counted = "unit must be the number of True in closes before this column"
    _refuse(table.unit != expected_unit, table.unit, "unit", counted)
    restarts = "local must restart at 0 in each unit and count its valid tokens by 1"
    _refuse(table.valid & (table.local != expected_local), table.local, "local", restarts)
    mark_at_start = table.memory.gather(1, table.start)
    _refuse(table.memory != mark_at_start, table.memory, "memory", "all tokens of a unit must have the same mark")


def _refuse(bad: Bool[Tensor, "batch seq"], values: Tensor, name: str, remedy: str) -> None:
    where = bad.nonzero()
    if len(where):
        row, column = where[0].tolist()
        raise InputError(f"{name}[{row}, {column}] is {values[row, column].item()}: {remedy}")
