"""Masks for the model's own attention: which version of a key a query sees, and what competition takes from its score.

Competition is subtracted from the scores of earlier units, as the method defines it: with a sink in the softmax, adding
to the own unit would not be the same. Masks are added after soft-capping, where the definition wants it.

Shapes: keys are what the cache hands out: all columns, the last of them (a window), or more (a static cache with room).
"""

from __future__ import annotations

from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from contentrope.attention.pairs import aligned, for_heads, no_competition, with_room
from contentrope.hf.frame import Frame

Exponent = float | Float[Tensor, "heads"]


def single_mask(
    frame: Frame, layer: int | None, given: Tensor | None, keys: int, dtype: torch.dtype, heads: int
) -> Tensor | None:
    """For queries that need every key in one version only; ``layer`` is None where units do not compete. A fixed
    exponent serves all layers of a kind alike. What stands alone, without a mask given, serves all tokens of a unit."""
    learned = layer is not None and isinstance(frame.competition, Tensor)
    if given is None and frame.masks is not None and keys == frame.total and layer is not None:
        name = layer if learned else frame.competition, dtype, heads
        kept = frame.masks.get(name)
        if kept is None or kept.shape[-1] < keys:
            if no_competition(competition := frame.competition_in(layer)):
                return None
            kept = frame.masks[name] = -_taken(frame, with_room(keys), competition, dtype, heads)
        return kept[..., :keys]
    competition = 0.0 if layer is None else frame.competition_in(layer)
    if learned or no_competition(competition) or torch.compiler.is_compiling():
        return _single_mask(frame, given, keys, competition, dtype, heads)
    memo, memo_name = frame.rule.memo, ("single", keys, dtype, heads, id(given))
    if memo_name not in memo:
        mask = cast(Tensor, _single_mask(frame, given, keys, competition, dtype, heads))
        memo[memo_name] = given, aligned(mask)  # with the mask given, so that its id stays its own
    return cast(Tensor, memo[memo_name][1])


def _single_mask(
    frame: Frame, given: Tensor | None, keys: int, competition: Exponent, dtype: torch.dtype, heads: int
) -> Tensor | None:
    given = _inside_memory(frame, given, keys)
    if no_competition(competition):
        return given
    return _less(given, _taken(frame, keys, competition, dtype, heads))


def doubled_mask(
    frame: Frame, given: Tensor | None, keys: int, competition: Exponent, dtype: torch.dtype, heads: int
) -> Tensor:
    """Over addressed keys and, behind them, local ones: each pair of query and key is seen in one version."""
    given = _inside_memory(frame, given, keys)
    given = _causal(frame, keys) if given is None else given[..., :keys]
    mask = given if no_competition(competition) else _less(given, _taken(frame, keys, competition, dtype, heads))
    reads_local = ~_earlier(frame, keys) & ~frame.rule.closes[:, None, :, None]
    hidden = lowest(mask.dtype)
    return torch.cat((mask.masked_fill(reads_local, hidden), mask.masked_fill(~reads_local, hidden)), dim=-1)


def lowest(dtype: torch.dtype) -> float | bool:
    """What hides a pair in a mask of this dtype."""
    return False if dtype == torch.bool else torch.finfo(dtype).min


def _inside_memory(frame: Frame, given: Tensor | None, keys: int) -> Tensor | None:
    """A query of a memory unit sees its own unit only."""
    memory = frame.rule.query_memory
    if memory is None:
        return given
    mask = _causal(frame, keys) if given is None else given[..., :keys]
    return mask.masked_fill(memory[:, None, :, None] & _earlier(frame, keys), lowest(mask.dtype))


def _less(given: Tensor | None, taken: Float[Tensor, "batch heads queries keys"]) -> Tensor:
    if given is None:
        return -taken
    given = given[..., : taken.shape[-1]]
    if given.dtype == torch.bool:
        return torch.where(given, -taken, lowest(taken.dtype))
    return given - taken.to(given.dtype)


def _taken(
    frame: Frame, keys: int, competition: Exponent, dtype: torch.dtype, heads: int
) -> Float[Tensor, "batch heads queries keys"]:
    """``alpha * log U`` where the key is of a unit that competes. A fixed alpha serves all layers alike."""
    shared = not isinstance(competition, Tensor)
    name = "taken", keys, dtype, heads
    taken = frame.rule.memo.get(name) if shared else None
    if taken is None:
        rule = frame.rule
        wide = torch.promote_types(dtype, torch.float32)
        unweighed, bonus = (
            for_heads(x, heads)[..., None] for x in (rule.unweighed_from(), rule.own_unit_bonus(competition, wide))
        )
        taken = torch.where(_columns(frame, keys) < unweighed, bonus, 0.0).to(dtype)
        if shared:
            rule.memo[name] = taken
    return taken


def _earlier(frame: Frame, keys: int) -> Bool[Tensor, "batch 1 queries keys"]:
    """Whether the key is of an earlier unit than the query."""
    return _columns(frame, keys) < frame.rule.start[:, None, :, None]


def _columns(frame: Frame, keys: int) -> Tensor:
    """The column each key stands for."""
    return torch.arange(keys, device=frame.rule.start.device) + max(frame.total - keys, 0)


def _causal(frame: Frame, keys: int) -> Bool[Tensor, "1 1 queries keys"]:
    """What the model's own attention does without a mask."""
    query_column = torch.arange(frame.offset, frame.total, device=frame.rule.start.device)[:, None]
    return (_columns(frame, keys) <= query_column)[None, None]
