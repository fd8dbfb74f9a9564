"""Addressed attention in tiles of queries: stock matrix products, any device, any length, trains.

For a tile of queries, keys left of the leftmost unit start are read addressed; only the band from there to the
diagonal needs both versions. A tile's scores are the largest tensor that ever exists; the backward pass computes
them again instead of keeping them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from contentrope.attention.pairs import Exponent, PairRule, Queries, States, no_competition, silence_padding
from contentrope.rotary import at_least_float32

TILE = {"cpu": (48, 2**26), "cuda": (512, 2**30)}
"""Queries per tile, and a bound on the bytes of one tile's scores: long sequences take smaller tiles.

Tiles of 48 measure best on the CPU; a GPU wants few, large products."""


class Tile(NamedTuple):
    """Queries begin..end of the call against keys 0..keys: those before ``band`` are read addressed by all of them,
    those from ``far`` on local by all of them, and what lies between needs both versions."""

    begin: int
    end: int
    band: int
    far: int
    keys: int
    reads_local: Bool[Tensor, "batch 1 1 tile both"]
    """Of the keys that need both versions."""
    local_bias: Float[Tensor, "batch 1 1 tile band"]
    """0 where the key is read local, -inf where it is not, or comes after the query."""
    addressed_bias: Float[Tensor, "batch 1 1 tile both"]
    """0 where the key is read addressed, -inf where it is not."""
    near: Bool[Tensor, "batch 1 1 tile band"]
    """Keys from which competition takes nothing: of the query's own unit and its window, and some after the query."""
    hidden: Bool[Tensor, "batch 1 1 tile keys"] | None
    """Pairs out of sight for another reason: padding, or a memory unit looking outside itself."""


def attend(states: States, rule: PairRule, *, competition: Exponent, dropout: float, scale: float) -> Queries:
    query, local_key, addressed_key, value, far_query = states
    dtype, wide = query.dtype, at_least_float32(query.dtype)
    batch, heads, queries, head_dim = query.shape
    kv_heads = local_key.shape[1]
    group = heads // kv_heads
    bonus = None
    if not no_competition(competition):
        bonus = rule.own_unit_bonus(competition, wide).expand(batch, heads, queries)
        bonus = bonus.reshape(batch, kv_heads, group, queries, 1)
    # The seed comes from torch's generator, so that torch.manual_seed governs dropout here as everywhere.
    seed = int(torch.randint(2**62, ())) if dropout else 0
    tiles = tiles_of(rule, batch * heads)
    grouped, far = (
        None if x is None else (x.to(wide) * scale).reshape(batch, kv_heads, group, queries, head_dim)
        for x in (query, far_query)
    )
    rows = batch * kv_heads
    keys_and_values = (x.to(wide).reshape(rows, rule.key_count, head_dim) for x in (local_key, addressed_key, value))
    out = _Tiled.apply(grouped, far, *keys_and_values, bonus, tiles, dropout, seed)
    return silence_padding(out.reshape(query.shape).to(dtype), rule)


def tiles_of(rule: PairRule, rows: int) -> list[Tile]:
    """The tiles of a call, derived from the unit starts once for all layers."""
    most, room = TILE.get(rule.start.device.type, TILE["cpu"])
    tile = max(16, min(most, room // max(4 * rows * rule.key_count, 1) // 16 * 16))
    tiles = rule.memo.get(("tiles", tile))
    if tiles is None:
        begins = range(0, rule.query_count, tile) if rule.start.numel() else ()
        tiles = [_tile(rule, begin, min(begin + tile, rule.query_count)) for begin in begins]
        rule.memo["tiles", tile] = tiles
    return tiles


def _tile(rule: PairRule, begin: int, end: int) -> Tile:
    near, keys = rule.near, rule.offset + end
    near_from = rule.near_from[:, begin:end]
    band, far = _edges(rule, begin, end)
    columns = torch.arange(keys, device=rule.start.device)
    query_column = columns[rule.offset + begin :, None]
    from_here = near_from[:, None, None, :, None]
    closes = rule.closes[:, None, None, begin:end, None]
    band_column = columns[band:]
    is_future = band_column > query_column
    in_window = band_column >= from_here
    if near is None:
        # A closing query reads its own unit addressed; the future, masked in the local scores, stays with those.
        reads_local = in_window & ~(closes & ~is_future)
    else:
        if near.key_memory is not None:
            own_unit = band_column >= rule.start[:, None, None, begin:end, None]
            in_window = in_window & (own_unit | is_future | ~near.key_memory[:, None, None, None, band:keys])
        reads_local = in_window
    both = reads_local[..., : far - band]
    biases = _minus_infinity(is_future | ~reads_local), _minus_infinity(both)
    return Tile(begin, end, band, far, keys, both, *biases, in_window, _hidden(rule, begin, end, columns))


def _minus_infinity(where: Bool[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    return torch.zeros(where.shape, device=where.device).masked_fill_(where, -torch.inf)


def _edges(rule: PairRule, begin: int, end: int) -> tuple[int, int]:
    """The ``band`` and ``far`` of a tile, from what came before its first query alone: products of another shape round
    otherwise, and no later token may change a bit."""
    near, keys = rule.near, rule.offset + end
    if near is None:
        return int(rule.start[:, begin:end].amin()), keys
    # What tokens of the text read near begins further and further to the right; memory units and padding stand apart.
    near_from = near.begin[:, : begin + 1]
    if rule.query_memory is not None:
        near_from = near_from.masked_fill(rule.query_memory[:, : begin + 1], 0)
    if rule.query_valid is not None:
        near_from = near_from.masked_fill(~rule.query_valid[:, : begin + 1], 0)
    band = int(near_from.amax(1).amin())
    if rule.key_unit is None or near.key_memory is not None:  # a memory unit may be read so late
        return band, keys
    # Units that begin here or later are near to all queries of the tile, if the first of them has begun by then.
    reach = keys - 1 - rule.window
    if reach <= 0:
        return band, band
    units = rule.key_unit.contiguous()
    far = int(torch.searchsorted(units, units[:, reach - 1, None].contiguous(), right=True).amax())
    return band, max(far, band) if far <= rule.offset + begin else keys


def _hidden(rule: PairRule, begin: int, end: int, columns: Tensor) -> Tensor | None:
    hidden: Tensor | None = None
    if rule.query_memory is not None:
        outside = columns < rule.start[:, begin:end, None]
        hidden = outside & rule.query_memory[:, begin:end, None]
    if rule.key_valid is not None:
        # A padding query may look at itself: softmax over nothing is 0/0. Its output is silenced later.
        itself = columns == columns[rule.offset + begin :, None]
        padding = ~rule.key_valid[:, None, : len(columns)] & ~itself
        hidden = padding if hidden is None else hidden | padding
    return None if hidden is None else hidden[:, None, None]


def _scores(
    query: Tensor, far_query: Tensor | None, local_key: Tensor, addressed_key: Tensor, bonus: Tensor | None, tile: Tile
) -> Tensor:
    """Scores of one tile, shape (batch, kv_heads, group, tile, keys)."""
    shape = (*query.shape[:3], tile.end - tile.begin, -1)
    rows = _rows_of(query, tile)
    far_rows = rows if far_query is None else _rows_of(far_query, tile)
    scores = torch.bmm(far_rows, addressed_key[:, : tile.far].transpose(1, 2)).view(shape)
    local = torch.bmm(rows, local_key[:, tile.band : tile.keys].transpose(1, 2)).view(shape).add_(tile.local_bias)
    # Under a window all that is near is read local; without one a closing query reads its own unit addressed.
    is_near_local = far_query is not None
    if bonus is not None and is_near_local:
        local.add_(bonus[..., tile.begin : tile.end, :])
    # The larger of the two is the one that is read: `where` takes many times as long.
    both, count = scores[..., tile.band :], tile.far - tile.band
    torch.maximum(both.add_(tile.addressed_bias), local[..., :count], out=both)
    if tile.far < tile.keys:
        scores = torch.cat((scores, local[..., count:]), dim=-1)
    if bonus is not None and not is_near_local:
        scores[..., tile.band :].addcmul_(tile.near.to(scores.dtype), bonus[..., tile.begin : tile.end, :])
    if tile.hidden is not None:
        scores.masked_fill_(tile.hidden, -torch.inf)
    return scores


def _rows_of(x: Float[Tensor, "batch kv_heads group queries head_dim"], tile: Tile) -> Float[Tensor, "rows m head_dim"]:
    """The queries of a tile, those of all heads that share keys one after the other."""
    return x[:, :, :, tile.begin : tile.end].flatten(0, 1).flatten(1, 2)


def _keep(weights: Tensor, dropout: float, seed: int, tile: Tile) -> Tensor:
    """The dropout factors of one tile; the same in the forward and the backward pass."""
    generator = torch.Generator(weights.device).manual_seed(seed + tile.begin)
    return torch.empty_like(weights).bernoulli_(1 - dropout, generator=generator).div_(1 - dropout)


class _Saved(NamedTuple):
    query: Tensor
    far_query: Tensor | None
    local_key: Tensor
    addressed_key: Tensor
    value: Tensor
    bonus: Tensor | None


class _Tiled(Function):
    """Queries are scaled and grouped, (batch, kv_heads, group, queries, head_dim); the rest (rows, keys, head_dim)."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        far_query: Tensor | None,
        local_key: Tensor,
        addressed_key: Tensor,
        value: Tensor,
        bonus: Tensor | None,
        tiles: list[Tile],
        dropout: float,
        seed: int,
    ) -> Tensor:
        ctx.save_for_backward(query, far_query, local_key, addressed_key, value, bonus)
        ctx.settings = tiles, dropout, seed
        out = torch.empty_like(query)
        for tile in reversed(tiles):  # as in plain.py, the largest first
            weights = _scores(query, far_query, local_key, addressed_key, bonus, tile).softmax(-1)
            if dropout:
                weights *= _keep(weights, dropout, seed, tile)
            flat = weights.view(len(value), -1, tile.keys)
            out[:, :, :, tile.begin : tile.end] = torch.bmm(flat, value[:, : tile.keys]).view(*weights.shape[:-1], -1)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # Asked for once: under gradient checkpointing a second time is refused.
        saved = _Saved(*ctx.saved_tensors)
        query, far_query, local_key, addressed_key, _, bonus = saved
        tiles, dropout, seed = ctx.settings
        of_bonus = bonus if ctx.needs_input_grad[5] else None  # a fixed exponent needs none
        grads = [None if x is None else torch.zeros_like(x) for x in saved._replace(bonus=of_bonus)]
        for tile in reversed(tiles):
            weights = _scores(query, far_query, local_key, addressed_key, bonus, tile).softmax(-1)
            keep = _keep(weights, dropout, seed, tile) if dropout else None
            _backward_tile(saved, tile, grad, weights, keep, grads)
        return *grads, None, None, None


def _backward_tile(
    saved: _Saved,
    tile: Tile,
    grad: Tensor,
    weights: Tensor,
    keep: Tensor | None,
    grads: list[Tensor | None],
) -> None:
    """Add one tile's share to the gradients of what was saved: query, far query, local key, addressed key, value and
    bonus."""
    query, far_query, local_key, addressed_key, value, _ = saved
    grad_query, grad_far_query, grad_local, grad_addressed, grad_value, grad_bonus = grads
    assert grad_query is not None
    assert grad_local is not None
    assert grad_addressed is not None
    assert grad_value is not None
    rows, span = len(value), slice(tile.begin, tile.end)
    flat_grad, flat_query = _rows_of(grad, tile), _rows_of(query, tile)
    flat_far_query = flat_query if far_query is None else _rows_of(far_query, tile)
    kept = weights if keep is None else weights * keep
    grad_value[:, : tile.keys] += torch.bmm(kept.view(rows, -1, tile.keys).transpose(1, 2), flat_grad)
    grad_weights = torch.bmm(flat_grad, value[:, : tile.keys].transpose(1, 2)).view_as(weights)
    if keep is not None:
        grad_weights *= keep
    grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
    band = grad_scores[..., tile.band :]
    if grad_bonus is not None:
        grad_bonus[..., span, :] = (band * tile.near).sum(-1, keepdim=True)
    count, grad_local_scores = tile.far - tile.band, band.clone()
    grad_local_scores[..., :count] *= tile.reads_local
    band[..., :count] -= grad_local_scores[..., :count]
    flat_local = grad_local_scores.view(rows, -1, tile.keys - tile.band)
    flat = grad_scores.view(rows, -1, tile.keys)[..., : tile.far]
    to_query = torch.bmm(flat, addressed_key[:, : tile.far])
    to_near_query = torch.bmm(flat_local, local_key[:, tile.band : tile.keys])
    if grad_far_query is None:
        to_near_query += to_query
    else:
        grad_far_query[:, :, :, span] = to_query.view(*weights.shape[:-1], -1)
    grad_query[:, :, :, span] = to_near_query.view(*weights.shape[:-1], -1)
    grad_addressed[:, : tile.far] += torch.bmm(flat.transpose(1, 2), flat_far_query)
    grad_local[:, tile.band : tile.keys] += torch.bmm(flat_local.transpose(1, 2), flat_query)
