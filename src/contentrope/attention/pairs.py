"""Which keys a query sees, and in which of their two versions: the causal rule, as data.

Every key exists twice: *local* (its position inside its unit) and *addressed* (the unit's address on top).
For a query t and a key s <= t:

    same unit, t does not close it     -> local key
    s in an earlier unit               -> addressed key
    t closes its unit                  -> addressed key everywhere; the query carries the address too

An open unit's address depends on tokens still to come, so nobody but its closing token may read it.
A query of a memory unit sees its own unit only.

Shapes: batch, queries (this call's tokens), keys (all columns so far; queries are the last of them).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
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


class Spared(NamedTuple):
    """What competition leaves alone besides a query's own unit: by head, units right before it."""

    start: Int[Tensor, "batch kv_heads queries"]
    """Column of the first token that is left alone; nowhere right of the own unit's."""
    units: Int[Tensor, "batch kv_heads queries"]
    """How many units that is, the own one not counted."""
    most: int
    """Of all heads."""


def for_heads(x: Shaped[Tensor, "batch kv_heads queries"], heads: int) -> Shaped[Tensor, "batch heads queries"]:
    """For query heads, of which neighbours share a key/value head; what is the same for all stays so."""
    return x if x.shape[1] in (1, heads) else x.repeat_interleave(heads // x.shape[1], dim=1)


def spared_units(
    begins: Int[Tensor, "batch units"],
    slot: Int[Tensor, "batch queries"],
    first: Int[Tensor, "batch 1"],
    back: tuple[int, ...],
) -> Spared:
    """``back`` says, for each key/value head, how many units before the own one are spared; none where there are not
    as many. ``begins`` are the first columns of ``max(back)`` units before slot 0, whose number is ``first``, and of
    the slots.
    """
    reach = max(back)
    own = slot.clamp(max=begins.shape[1] - reach - 1)
    start, units = [], []
    for count in back:
        there = first + slot >= count
        start.append(begins.gather(1, own + reach - torch.where(there, count, 0)))
        units.append(torch.where(there, count, 0))
    return Spared(torch.stack(start, dim=1), torch.stack(units, dim=1), reach)


def unit_begins(units: Units, slot: Int[Tensor, "batch queries"], slots: int) -> Int[Tensor, "batch slots"]:
    """The first column of each slot's unit; far to the right where there is none."""
    nowhere = torch.full((len(slot), slots), units.offset + units.seq_length, dtype=torch.int64, device=slot.device)
    start = torch.where(units.valid, units.start, units.offset + units.seq_length)
    return nowhere.scatter_reduce(1, slot.clamp(max=slots - 1), start, "amin")


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
    spared: Spared | None = None
    """None: competition takes from all earlier units."""
    offset: int = 0
    longest: int | None = None
    """No unit has more columns; None: not known."""
    memo: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """Where a backend keeps what it derives from the rule once for all layers."""

    @classmethod
    def among(cls, units: Units, spare: tuple[int, ...] = ()) -> PairRule:
        """The rule of a whole sequence read at once; ``spare``: see :func:`spared_units`."""
        spared = None
        if any(spare):
            begins = F.pad(unit_begins(units, units.unit, units.seq_length), (max(spare), 0))
            spared = spared_units(begins, units.unit, torch.zeros_like(units.unit[:, :1]), spare)
        return cls(
            spared=spared,
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

    def log_completed(self, dtype: torch.dtype) -> Float[Tensor, "batch queries"]:
        """``log U``, U the units completed before the query (at least 1); 0 for a query that sees none of them.

        A memory unit that knew how many came before it would not be the same in another place.
        """
        found = self.query_unit.clamp(min=1).to(dtype).log()
        return found if self.query_memory is None else torch.where(self.query_memory, 0.0, found)

    def own_unit_bonus(self, competition: Exponent, dtype: torch.dtype) -> Float[Tensor, "batch heads queries"]:
        """``alpha * log U``, U the units completed before the query.

        Subtracting it from the scores of earlier units, as the method is defined, and adding it to those of the
        query's own unit differ by a constant per query, which softmax does not see. The own unit is the
        smaller set, so the fast backends add.
        """
        log_units = self.log_competing(dtype)
        if not isinstance(competition, Tensor):
            return competition * log_units
        if competition.ndim:
            log_units = for_heads(log_units, len(competition))
        return competition.to(dtype).view(-1, 1) * log_units

    def log_competing(self, dtype: torch.dtype) -> Float[Tensor, "batch kv_heads queries"]:
        """The same by head, without the units that are spared."""
        if self.spared is None:
            return self.log_completed(dtype)[:, None]
        return (self.query_unit[:, None] - self.spared.units).clamp(min=1).to(dtype).log()

    def unweighed_from(self) -> Int[Tensor, "batch kv_heads queries"]:
        """The column from which on competition takes nothing."""
        return self.start[:, None] if self.spared is None else self.spared.start


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
