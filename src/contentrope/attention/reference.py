"""Dense addressed attention, written to be read: the definition every other backend is tested against."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool
from torch import Tensor

from contentrope.attention.pairs import Exponent, PairRule, Queries, States, for_heads
from contentrope.rotary import at_least_float32


def attend(states: States, rule: PairRule, *, competition: Exponent, dropout: float, scale: float) -> Queries:
    query, local_key, addressed_key, value = states
    wide = at_least_float32(query.dtype)
    group = query.shape[1] // local_key.shape[1]
    local_key, addressed_key, value = (
        x.to(wide).repeat_interleave(group, dim=1) for x in (local_key, addressed_key, value)
    )
    out_dtype, query = query.dtype, query.to(wide)
    same_unit, visible = same_unit_and_visible(rule)
    reads_local = same_unit & ~rule.closes[..., None]
    scores = scale * torch.where(
        reads_local[:, None], query @ local_key.transpose(-1, -2), query @ addressed_key.transpose(-1, -2)
    )
    alpha = torch.as_tensor(competition, dtype=wide, device=query.device).view(-1, 1, 1)
    unweighed, competing = same_unit[:, None], rule.query_unit[:, None]
    if rule.spared is not None:
        begin, units = (for_heads(x, query.shape[1]) for x in rule.spared[:2])
        unweighed = torch.arange(rule.key_count, device=query.device) >= begin[..., None]
        competing = competing - units
    log_units = competing.clamp(min=1).to(wide).log()[..., None]
    scores = scores - torch.where(unweighed, 0.0, alpha * log_units)
    scores = scores.masked_fill(~visible[:, None], -torch.inf)
    # A row that sees nothing (padding) gets weights of zero instead of 0/0.
    sees_any = visible.any(-1)[:, None, :, None]
    weights = torch.where(sees_any, scores, 0.0).softmax(-1) * sees_any
    return (F.dropout(weights, dropout) @ value).to(out_dtype)


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
