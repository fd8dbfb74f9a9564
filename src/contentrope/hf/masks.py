"""Masks for the model's own attention: which version of a key a query sees, and what competition takes from its score.

Competition is subtracted from the scores of earlier units, as the method defines it: with a sink in the softmax, adding
to the own unit would not be the same. Masks are added after soft-capping, where the definition wants it.

Shapes: keys are what the cache hands out: all columns, the last of them (a window), or more (a static cache with room).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from contentrope.attention.pairs import aligned, no_competition, with_room
from contentrope.hf.frame import Frame

Exponent = float | Float[Tensor, "heads"]


class Scores(NamedTuple):
    """What a mask is added to."""

    heads: int
    keys: int
    dtype: torch.dtype

    @classmethod
    def of(cls, query: Tensor, key: Tensor) -> Scores:
        return cls(query.shape[1], key.shape[2], query.dtype)


def single_mask(frame: Frame, layer: int | None, given: Tensor | None, scores: Scores) -> Tensor | None:
    """For queries that need every key in one version only; ``layer`` is None where units do not compete. A fixed
    exponent serves all layers of a kind alike. A single token's, without a mask given, serves all tokens of a unit."""
    learned = layer is not None and isinstance(frame.competition, Tensor)
    if given is None and frame.masks is not None and scores.keys == frame.total and layer is not None:
        name = layer if learned else frame.competition, scores.dtype, scores.heads
        kept = frame.masks.get(name)
        if kept is None or kept.shape[-1] < scores.keys:
            if no_competition(competition := frame.competition_in(layer)):
                return None
            kept = frame.masks[name] = -_taken(frame, scores._replace(keys=with_room(scores.keys)), competition)
        return kept[..., : scores.keys]
    competition = 0.0 if layer is None else frame.competition_in(layer)
    if learned or no_competition(competition) or torch.compiler.is_compiling():
        return _single_mask(frame, given, scores, competition)
    memo, memo_name = frame.rule.memo, ("single", scores, id(given))
    if memo_name not in memo:
        mask = _single_mask(frame, given, scores, competition)
        assert mask is not None, "units compete"
        memo[memo_name] = given, aligned(mask)  # with the mask given, so that its id stays its own
    found: Tensor = memo[memo_name][1]
    return found


def _single_mask(frame: Frame, given: Tensor | None, scores: Scores, competition: Exponent) -> Tensor | None:
    """``given``, less what competition takes; a query of a memory unit sees its own unit only."""
    memory = frame.rule.query_memory
    if memory is not None:
        given = _causal(frame, scores.keys) if given is None else given[..., : scores.keys]
        given = given.masked_fill(memory[:, None, :, None] & _earlier(frame, scores.keys), lowest(given.dtype))
    if no_competition(competition):
        return given
    taken = _taken(frame, scores, competition)
    if given is None:
        return -taken
    given = given[..., : scores.keys]
    if given.dtype == torch.bool:
        return torch.where(given, -taken, lowest(taken.dtype))
    return given - taken.to(given.dtype)


def doubled_mask(frame: Frame, layer: int, given: Tensor | None, scores: Scores) -> Tensor:
    """Over addressed keys and, behind them, local ones: each pair of query and key is seen in one version."""
    given = _causal(frame, scores.keys) if given is None else given[..., : scores.keys]
    mask = _single_mask(frame, given, scores, frame.competition_in(layer))
    assert mask is not None, "one was given"
    reads_local = ~_far(frame, scores.keys)
    if frame.rule.near is None:
        reads_local = reads_local & ~frame.rule.closes[:, None, :, None]
    hidden = lowest(mask.dtype)
    return torch.cat((mask.masked_fill(reads_local, hidden), mask.masked_fill(~reads_local, hidden)), dim=-1)


def lowest(dtype: torch.dtype) -> float | bool:
    """What hides a pair in a mask of this dtype."""
    return False if dtype == torch.bool else torch.finfo(dtype).min


def _taken(frame: Frame, scores: Scores, competition: Exponent) -> Float[Tensor, "batch heads queries keys"]:
    """``alpha * log U`` where the key is of a unit that competes. A fixed alpha serves all layers alike."""
    rule, shared = frame.rule, not isinstance(competition, Tensor)
    name = "taken", scores
    taken: Tensor | None = rule.memo.get(name) if shared else None
    if taken is None:
        bonus = rule.own_unit_bonus(competition, torch.promote_types(scores.dtype, torch.float32))
        taken = torch.where(_far(frame, scores.keys), bonus[..., None], 0.0).to(scores.dtype)
        if shared:
            rule.memo[name] = taken
    return taken


def hidden_columns(frame: Frame, given: Tensor | None, columns: int) -> Bool[Tensor, "batch columns"] | None:
    """What a single token does not see: by the model's mask, and beyond its unit if that is memory."""
    hidden = None
    if given is not None:
        row = given[:, 0, 0, :columns]
        hidden = ~row if row.dtype == torch.bool else row <= lowest(row.dtype) / 2
    if frame.rule.query_memory is not None:
        beyond = frame.rule.query_memory & _earlier(frame, columns)[:, 0, 0]
        hidden = beyond if hidden is None else hidden | beyond
    return hidden


def _far(frame: Frame, keys: int) -> Bool[Tensor, "batch 1 queries keys"]:
    """Whether the key is read at its address, and competes: of an earlier unit, or beyond the near window."""
    earlier, near = _earlier(frame, keys), frame.rule.near
    if near is None:
        return earlier
    far = _columns(frame, keys) < near.begin[:, None, :, None]
    if near.key_memory is None:
        return far
    memory = F.pad(near.key_memory, (0, max(keys - frame.total, 0)))[:, -keys:]
    return far | (earlier & memory[:, None, None])


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
