"""Which keys a query sees, and in which of their two versions: the causal rule, as data.

Every key exists twice: *local* (its position inside its unit) and *addressed* (the unit's address on top).
For a query t and a key s <= t:

    same unit, t does not close it     -> local key
    s in an earlier unit               -> addressed key
    t closes its unit                  -> addressed key everywhere; the query carries the address too

An open unit's address depends on tokens still to come, so nobody but its closing token may read it.
A query of a memory unit sees its own unit only.

With a near window of W tokens the *local* keys stand at ordinary, growing positions, and are called near:

    s's unit began at most W tokens before t's -> near key: the model's own RoPE
    s's unit began earlier, or is memory       -> addressed key, read by a query W positions into the own unit

Every query comes in two versions then, and a query that closes its unit is one like any other.

Shapes: batch, queries (this call's tokens), keys (all columns so far; queries are the last of them).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from contentrope.units import Units

Queries = Float[Tensor, "batch heads queries head_dim"]
Keys = Float[Tensor, "batch kv_heads keys head_dim"]
Exponent = float | Float[Tensor, "heads"]
"""Of competition: one, or one for every head."""
ALIGNMENT = 16
"""Numbers in a row of a bias, for a GPU: a multiple of this."""
ROOM = 64
"""Columns to come for which a single token's bias is made too."""


class States(NamedTuple):
    """What a backend is given; both versions of the keys."""

    query: Queries
    local_key: Keys
    addressed_key: Keys
    value: Keys
    far_query: Queries | None = None
    """Under a near window, what reads addressed keys; None: the one query reads both."""

    def to(self, dtype: torch.dtype) -> States:
        return States(*(None if x is None else x.to(dtype) for x in self))  # type: ignore[arg-type]


class Near(NamedTuple):
    """The near window of every query. Positions count tokens that are neither padding nor memory."""

    begin: Int[Tensor, "batch queries"]
    """The column from which keys are read near: where a unit begins, at or left of the query's own."""
    far_units: Int[Tensor, "batch queries"]
    """Completed units that are read far; of a memory unit's queries any number, as they see none."""
    key_memory: Bool[Tensor, "batch keys"] | None
    """Keys of memory units, which other units read far wherever they stand."""

    def reorder(self, index: Int[Tensor, "rows"]) -> Near:
        return Near(*(None if x is None else x[index] for x in self))  # type: ignore[arg-type]


def near_window(
    width: int,
    unit_position: Int[Tensor, "batch keys"],
    unit: Int[Tensor, "batch keys"],
    queries: tuple[Int[Tensor, "batch queries"], ...],
    query_memory: Bool[Tensor, "batch queries"] | None = None,
    key_memory: Bool[Tensor, "batch keys"] | None = None,
) -> Near:
    """``unit_position`` is where each column's unit begins, counted in positions: -1 for padding and memory.

    ``queries`` are, for each query, the position at which its unit begins, the column, and its number.
    """
    position, start, number = queries
    # Non-decreasing, so that it can be searched: padding and memory stand where what came before them stands.
    begins = unit_position.cummax(1).values.contiguous()
    begin = torch.searchsorted(begins, (position - width).clamp(min=0).contiguous())
    begin = torch.minimum(begin, start)
    if key_memory is None:
        first_near = unit.gather(1, begin.clamp(max=unit.shape[1] - 1))
        return Near(begin, torch.where(begin < start, first_near, number), None)
    is_first = F.pad(begins, (1, 0), value=-1).diff(dim=1) > 0
    units_before = F.pad(is_first.cumsum(1), (1, 0))  # that are read near, left of each column
    near_units = units_before.gather(1, start) - units_before.gather(1, begin)
    begin = begin if query_memory is None else torch.where(query_memory, start, begin)
    return Near(begin, number - near_units, key_memory)


def near_among(units: Units, width: int) -> Near:
    """The windows of a whole sequence."""
    at = unit_positions(units)
    memory = units.memory if units.has_memory else None
    return near_window(width, at, units.unit, (at, units.start, units.unit), memory, memory)


def unit_positions(units: Units, before: Int[Tensor, "batch 1"] | int = 0) -> Int[Tensor, "batch seq"]:
    """The position at which each token's unit begins, -1 for padding and memory. ``before`` are the positions that
    earlier columns have taken."""
    if not units.padded and not units.has_memory:
        columns = torch.arange(units.seq_length, device=units.local.device)
        return before + columns - units.local
    counted = units.valid & ~units.memory
    return torch.where(counted, before + counted.cumsum(1) - 1 - units.local, -1)


@dataclass(frozen=True, kw_only=True)
class PairRule:
    """The rule for one call; shared by all its layers. Query t stands at column ``offset + t``."""

    query_unit: Int[Tensor, "batch queries"]
    key_unit: Int[Tensor, "batch keys"] | None
    """None for a single query, whose unit's ``start`` tells as much."""
    start: Int[Tensor, "batch queries"]
    """Column of the first token of the query's unit: a key of an earlier unit lies left of it."""
    closes: Bool[Tensor, "batch queries"]
    query_valid: Bool[Tensor, "batch queries"] | None
    key_valid: Bool[Tensor, "batch keys"] | None
    query_memory: Bool[Tensor, "batch queries"] | None
    near: Near | None = None
    """None: no window, only the own unit is read by local keys."""
    window: int = 0
    """How many tokens it has, where the host knows: bounds how far to the left near keys lie."""
    offset: int = 0
    longest: int | None = None
    """No unit has more columns; None: not known."""
    memo: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """Where a backend keeps what it derives from the rule once for all layers."""

    @classmethod
    def among(cls, units: Units, window: int = 0) -> PairRule:
        """The rule of a whole sequence read at once."""
        return cls(
            near=near_among(units, window) if window else None,
            window=window,
            query_unit=units.unit,
            key_unit=units.unit,
            start=units.start,
            closes=units.closes,
            query_valid=units.valid if units.padded else None,
            key_valid=units.valid if units.padded else None,
            query_memory=units.memory if units.has_memory else None,
            longest=None if units.padded else units.longest,
        )

    @property
    def query_count(self) -> int:
        return self.start.shape[1]

    @property
    def key_count(self) -> int:
        return self.offset + self.query_count

    @property
    def near_from(self) -> Int[Tensor, "batch queries"]:
        """The column from which keys are read by their local version; left of it all are read addressed."""
        return self.start if self.near is None else self.near.begin

    def log_completed(self, dtype: torch.dtype) -> Float[Tensor, "batch queries"]:
        """``log U``, U the units completed before the query (at least 1); 0 for a query that sees none of them.

        A memory unit that knew how many came before it would not be the same in another place.
        """
        found = self.query_unit.clamp(min=1).to(dtype).log()
        return found if self.query_memory is None else torch.where(self.query_memory, 0.0, found)

    def log_far(self, dtype: torch.dtype) -> Float[Tensor, "batch queries"]:
        """The same of the units that are read far."""
        if self.near is None:
            return self.log_completed(dtype)
        found = self.near.far_units.clamp(min=1).to(dtype).log()
        return found if self.query_memory is None else torch.where(self.query_memory, 0.0, found)

    def own_unit_bonus(self, competition: Exponent, dtype: torch.dtype) -> Float[Tensor, "batch heads queries"]:
        """``alpha * log U``, U the completed units that are read far.

        Subtracting it from the scores of those units, as the method is defined, and adding it to those of the
        query's own unit, and its near ones, differ by a constant per query, which softmax does not see. The own unit
        is the smaller set, so the fast backends add.
        """
        log_units = self.log_far(dtype)[:, None]
        if not isinstance(competition, Tensor):
            return competition * log_units
        return competition.to(dtype).view(-1, 1) * log_units


def aligned(bias: Float[Tensor, "*rows keys"]) -> Float[Tensor, "*rows keys"]:
    """The same numbers, in rows that begin where a GPU's kernels want them: others they would copy in every layer."""
    keys = bias.shape[-1]
    return F.pad(bias, (0, -keys % ALIGNMENT))[..., :keys] if bias.is_cuda and keys % ALIGNMENT else bias


def with_room(keys: int) -> int:
    """Columns of a bias that serves the next tokens of a unit too.

    >>> with_room(100)
    176
    """
    return -(-(keys + ROOM) // ALIGNMENT) * ALIGNMENT


def no_competition(competition: Exponent) -> bool:
    """True where the exponent is the constant 0, the paper's setting."""
    return not isinstance(competition, Tensor) and competition == 0.0


def silence_padding(out: Float[Tensor, "batch heads queries head_dim"], rule: PairRule) -> Tensor:
    """Padding reads nothing: its output is zero."""
    if rule.query_valid is None:
        return out
    return torch.where(rule.query_valid[:, None, :, None], out, 0.0)
