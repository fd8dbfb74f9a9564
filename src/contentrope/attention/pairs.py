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
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from contentrope.units import Units

ALIGNMENT = 16
"""Numbers in a row of a bias, for a GPU: a multiple of this."""


@dataclass(frozen=True, kw_only=True)
class PairRule:
    """The rule for one call; shared by all its layers. Query t stands at column ``offset + t``."""

    query_unit: Int[Tensor, "batch queries"]
    key_unit: Int[Tensor, "batch keys"]
    start: Int[Tensor, "batch queries"]
    """Column of the first token of the query's unit: a key of an earlier unit lies left of it."""
    closes: Bool[Tensor, "batch queries"]
    query_valid: Bool[Tensor, "batch queries"] | None
    key_valid: Bool[Tensor, "batch keys"] | None
    query_memory: Bool[Tensor, "batch queries"] | None
    offset: int = 0
    longest: int | None = None
    """No unit has more columns; None: not known."""
    memo: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """Where a backend keeps what it derives from the rule once for all layers."""

    @classmethod
    def among(cls, units: Units) -> PairRule:
        """The rule of a whole sequence read at once."""
        return cls(
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
        return self.key_unit.shape[1]

    def log_completed(self, dtype: torch.dtype) -> Float[Tensor, "batch queries"]:
        """``log U``, U the units completed before the query (at least 1); 0 for a query that sees none of them.

        A memory unit that knew how many came before it would not be the same in another place.
        """
        found = self.query_unit.clamp(min=1).to(dtype).log()
        return found if self.query_memory is None else torch.where(self.query_memory, 0.0, found)

    def own_unit_bonus(
        self, competition: float | Float[Tensor, "heads"], dtype: torch.dtype
    ) -> Float[Tensor, "batch heads queries"]:
        """``alpha * log U``, U the units completed before the query.

        Subtracting it from the scores of earlier units, as the method is defined, and adding it to those of the
        query's own unit differ by a constant per query, which softmax does not see. The own unit is the
        smaller set, so the fast backends add.
        """
        log_units = self.log_completed(dtype)[:, None]
        if isinstance(competition, Tensor):
            return competition.to(dtype).view(-1, 1) * log_units
        return competition * log_units


def aligned(bias: Float[Tensor, "*rows keys"]) -> Float[Tensor, "*rows keys"]:
    """The same numbers, in rows that begin where a GPU's kernels want them: others they would copy in every layer."""
    keys = bias.shape[-1]
    return F.pad(bias, (0, -keys % ALIGNMENT))[..., :keys] if bias.is_cuda and keys % ALIGNMENT else bias


def no_competition(competition: float | Tensor) -> bool:
    """True where the exponent is the constant 0, the paper's setting."""
    return not isinstance(competition, Tensor) and competition == 0.0


def silence_padding(out: Float[Tensor, "batch heads queries head_dim"], rule: PairRule) -> Tensor:
    """Padding reads nothing: its output is zero."""
    if rule.query_valid is None:
        return out
    return torch.where(rule.query_valid[:, None, :, None], out, 0.0)
