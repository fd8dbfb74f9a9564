"""Dense addressed attention, written to be read: the definition every other backend is tested against."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool
from torch import Tensor

from contentrope.attention.pairs import Exponent, PairRule, Queries, States
from contentrope.rotary import at_least_float32


def attend(states: States, rule: PairRule, *, competition: Exponent, dropout: float, scale: float) -> Queries:
    query, local_key, addressed_key, value, far_query = states
    wide = at_least_float32(query.dtype)
    group = query.shape[1] // local_key.shape[1]
    local_key, addressed_key, value = (
        x.to(wide).repeat_interleave(group, dim=1) for x in (local_key, addressed_key, value)
    )
    out_dtype, query = query.dtype, query.to(wide)
    far_query = query if far_query is None else far_query.to(wide)
    same_unit, visible = same_unit_and_visible(rule)
    near = same_unit if rule.near is None else _near_pairs(rule, same_unit)
    reads_local = near & ~rule.closes[..., None] if rule.near is None else near
    scores = scale * torch.where(
        reads_local[:, None], query @ local_key.transpose(-1, -2), far_query @ addressed_key.transpose(-1, -2)
    )
    alpha = torch.as_tensor(competition, dtype=wide, device=query.device).view(-1, 1, 1)
    far_units = rule.query_unit if rule.near is None else rule.near.far_units
    log_units = far_units.clamp(min=1).to(wide).log()[:, None, :, None]
    scores = scores - torch.where(near[:, None], 0.0, alpha * log_units)
    scores = scores.masked_fill(~visible[:, None], -torch.inf)
    # A row that sees nothing (padding) gets weights of zero instead of 0/0.
    sees_any = visible.any(-1)[:, None, :, None]
    weights = torch.where(sees_any, scores, 0.0).softmax(-1) * sees_any
    return (F.dropout(weights, dropout) @ value).to(out_dtype)


def _near_pairs(rule: PairRule, same_unit: Bool[Tensor, "batch queries keys"]) -> Tensor:
    """Which keys a query reads at ordinary positions: those of its window, but for memory units other than its own."""
    near = rule.near
    assert near is not None
    in_window = torch.arange(rule.key_count, device=near.begin.device) >= near.begin[..., None]
    return in_window if near.key_memory is None else in_window & (same_unit | ~near.key_memory[:, None])


def same_unit_and_visible(
    rule: PairRule,
) -> tuple[Bool[Tensor, "batch queries keys"], Bool[Tensor, "batch queries keys"]]:
    device = rule.query_unit.device
    query_column = rule.offset + torch.arange(rule.query_count, device=device)[:, None]
    key_column = torch.arange(rule.key_count, device=device)[None, :]
    assert rule.key_unit is not None, "who reads single tokens without it never comes here"
    same_unit = rule.query_unit[:, :, None] == rule.key_unit[:, None, :]
    visible = (key_column <= query_column).expand_as(same_unit)
    if rule.query_memory is not None:
        visible = visible & (same_unit | ~rule.query_memory[:, :, None])
    if rule.query_valid is not None:
        visible = visible & rule.query_valid[:, :, None]
    if rule.key_valid is not None:
        visible = visible & rule.key_valid[:, None, :]
    return same_unit, visible
