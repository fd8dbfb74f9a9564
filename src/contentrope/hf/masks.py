"""Masks for the model's own attention: which version of a key a query sees, and what competition takes from its score.

Competition is subtracted from the scores of earlier units, as the method defines it: with a sink in the softmax, adding
to the own unit would not be the same. Masks are added after soft-capping, where the definition wants it.

Shapes: keys are what the cache hands out: all columns, the last of them (a window), or more (a static cache with room).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from contentrope.attention.pairs import no_competition
from contentrope.hf.frame import Frame

Exponent = float | Float[Tensor, "heads"]


def single_mask(
    frame: Frame, given: Tensor | None, keys: int, competition: Exponent, dtype: torch.dtype
) -> Tensor | None:
    """For queries that need every key in one version only."""
    if no_competition(competition):
        return given
    return _less(given, _taken(frame, keys, competition, dtype))


def doubled_mask(frame: Frame, given: Tensor | None, keys: int, competition: Exponent, dtype: torch.dtype) -> Tensor:
    """Over addressed keys and, behind them, local ones: each pair of query and key is seen in one version."""
    rule = frame.rule
    same_unit = rule.query_unit[:, :, None] == last_or_padded(rule.key_unit, keys)[:, None]
    reads_local = (same_unit & ~rule.closes[..., None])[:, None]
    given = _causal(frame, keys) if given is None else given[..., :keys]
    mask = given if no_competition(competition) else _less(given, _taken(frame, keys, competition, dtype))
    hidden = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
    return torch.cat((mask.masked_fill(reads_local, hidden), mask.masked_fill(~reads_local, hidden)), dim=-1)


def last_or_padded(x: Tensor, keys: int) -> Tensor:
    """Of all columns those that ``keys`` keys stand for: the last of them, or all and room behind."""
    columns = x.shape[1]
    if keys <= columns:
        return x[:, columns - keys :]
    return F.pad(x, (0, 0) * (x.ndim - 2) + (0, keys - columns))


def _less(given: Tensor | None, taken: Float[Tensor, "batch heads queries keys"]) -> Tensor:
    if given is None:
        return -taken
    given = given[..., : taken.shape[-1]]
    if given.dtype == torch.bool:
        return torch.where(given, -taken, torch.finfo(taken.dtype).min)
    return given - taken.to(given.dtype)


def _taken(
    frame: Frame, keys: int, competition: Exponent, dtype: torch.dtype
) -> Float[Tensor, "batch heads queries keys"]:
    """``alpha * log U`` where the key is of an earlier unit than the query. A fixed alpha serves all layers alike."""
    shared = not isinstance(competition, Tensor)
    taken = frame.rule.memo.get(("taken", keys, dtype)) if shared else None
    if taken is None:
        rule = frame.rule
        earlier = _columns(frame, keys) < rule.start[:, None, :, None]
        wide = torch.promote_types(dtype, torch.float32)
        taken = torch.where(earlier, rule.own_unit_bonus(competition, wide)[..., None], 0.0).to(dtype)
        if shared:
            rule.memo["taken", keys, dtype] = taken
    return taken


def _columns(frame: Frame, keys: int) -> Tensor:
    """The column each key stands for."""
    return torch.arange(keys, device=frame.rule.start.device) + max(frame.columns.count - keys, 0)


def _causal(frame: Frame, keys: int) -> Bool[Tensor, "1 1 queries keys"]:
    """What the model's own attention does without a mask."""
    query_column = torch.arange(frame.offset, frame.columns.count, device=frame.rule.start.device)[:, None]
    return (_columns(frame, keys) <= query_column)[None, None]
