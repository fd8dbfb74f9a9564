"""The context of addressed schemes: local rotations, addresses of completed units, and the cache's re-addressing.

Three ways of reading share one rule: a whole sequence, chunked prefill after cached columns, and decoding a single
token. Decoding is the cheap one: no key is needed in both versions at once, so the unit's keys are re-addressed first
if the token closes it, and attention is a plain product with the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from contentrope.anchors import UnitsBefore
from contentrope.attention import PairRule, backend_function, fused
from contentrope.attention.api import REGISTERED
from contentrope.attention.pairs import aligned, no_competition, silence_padding, with_room
from contentrope.cache import Cache
from contentrope.context.chunk import Chunk, Projected
from contentrope.rotary import Rotation, rotate, rotation_of
from contentrope.units import SegmenterState, Units


class Reading(NamedTuple):
    """The units of a chunk, the segmenter's state around it, and the local rotations."""

    units: Units
    before: SegmenterState
    after: SegmenterState
    local: Rotation
    earlier: Units | None = None
    """Under context parallelism: the units of the columns that lower ranks hold."""

    def by_token(self, by_slot: Float[Tensor, "batch slots *rest"]) -> Float[Tensor, "batch seq *rest"]:
        if self.units.seq_length == 1:  # slots are as many as tokens
            return by_slot
        index = self.slot.view(*self.slot.shape, *(1 for _ in by_slot.shape[2:]))
        return by_slot.gather(1, index.expand(-1, -1, *by_slot.shape[2:]))

    @property
    def slot(self) -> Int[Tensor, "batch seq"]:
        """The token's unit, counted from the one that was open before this call: 0..seq-1."""
        return self.units.unit - self.before.next_unit if self.before.columns else self.units.unit

    def completes_any(self, chunk: Chunk) -> bool:
        """False for a single token after others that closes no unit: decoding, most of the time. No address is needed
        then. Longer chunks are taken to complete one, which avoids a GPU sync."""
        return chunk.cache is None or chunk.ids.shape[1] > 1 or self.units.completes_any()

    def completes_all(self, chunk: Chunk) -> bool:
        """Whether all columns from where the open unit began are of the unit that this call completes, as far as the
        host knows: a single token after others that ends the unit of the only row."""
        cache = chunk.cache
        return cache is not None and not cache.padded and chunk.ids.numel() == 1 and self.units.ends_any is True


class Carried(NamedTuple):
    """What open units carry in place of an address of their own, and what the next call must know for that."""

    by_slot: Float[Tensor, "batch slots kv_heads pairs"]
    """Angles added to the local ones."""
    recent: UnitsBefore
    """The last units completed by the end of the call."""


class Window(NamedTuple):
    """Cached columns from ``begin`` whose unit is completed by this call, their address, and the rotation to it."""

    begin: int
    completed: Bool[Tensor, "batch window"] | None
    """None: all of them."""
    address: Float[Tensor, "batch window kv_heads pairs"]
    rotated: Float[Tensor, "batch window kv_heads pairs"]
    rotation: Rotation


class AddressedContext:
    """``angles`` is the address of every slot; None: the identity, or no address is needed. ``carried``, if given, is
    what every slot's unit carries while it is open: the places of units before it."""

    def __init__(
        self,
        chunk: Chunk,
        reading: Reading,
        *,
        angles: Float[Tensor, "batch slots kv_heads pairs"] | None,
        competition: Callable[[int], float | Tensor],
        sharpness: Callable[[int], float | Tensor],
        open_total: Float[Tensor, "batch dim"] | None = None,
        carried: Carried | None = None,
    ) -> None:
        self.chunk = chunk
        self.reading = reading
        self.competition = competition
        self.sharpness = sharpness
        self.open_total = open_total
        self.carried = carried
        self.layout = chunk.config.rotary.pairs
        self.scale = 1 / math.sqrt(chunk.config.head_dim)
        chunk.note(reading.units)
        # The reference defines single tokens too: it takes the general way.
        self.single = chunk.cache is not None and chunk.ids.shape[1] == 1 and chunk.backend != "reference"
        self.rule = _rule(chunk, reading, self.single)
        self.sees_all = self.rule.key_valid is None and self.rule.query_memory is None
        self.biases = dict(chunk.state.biases) if self.single and self.sees_all else {}
        self.query_rotation = self.key_rotation = reading.local
        self.addressed_rotation: Rotation | None = None
        self.fused_rotations: fused.FusedRotations | None = None
        self.window: Window | None = None
        if carried is not None:
            open_rotation = rotation_of(reading.by_token(carried.by_slot))
            self.query_rotation = self.key_rotation = reading.local.then(open_rotation)
        if angles is not None:
            self._address(angles)

    def _address(self, by_slot: Float[Tensor, "batch slots kv_heads pairs"]) -> None:
        reading, cache, closes = self.reading, self.chunk.cache, self.reading.units.closes
        if self.chunk.backend == "fused" and cache is None and self.carried is None:
            REGISTERED["fused"].require(self.chunk.embedded, self.chunk.config.head_dim)
            self.fused_rotations = fused.rotations_of(reading.local, by_slot, reading.slot, closes)
            return
        by_token = reading.by_token(by_slot)
        address = rotation_of(by_token)
        if self.carried is None:
            of_query = address if reading.completes_all(self.chunk) else address.only_where(closes)
        else:
            of_open_unit = reading.by_token(self.carried.by_slot)
            of_query = rotation_of(torch.where(closes[..., None, None], by_token, of_open_unit))
        self.query_rotation = reading.local.then(of_query)
        if cache is None:
            self.addressed_rotation = reading.local.then(address)
        else:
            self.window = _window(cache, self.chunk, reading, by_slot, self.carried)
            if self.single:
                self._rotate_cached_keys(cache, self.window)

    def _rotate_cached_keys(self, cache: Cache, window: Window) -> None:
        """A single token needs no key in both versions: those of the unit it completes are rotated in all layers at
        once, before the first reads them, and its own are stored as its queries are rotated."""
        self.key_rotation = self.query_rotation
        old = cache.length - window.begin
        if old:
            cos, sin, _ = window.rotation
            cache.rotate_keys(window.begin, Rotation(cos[:, :old], sin[:, :old]))

    def embed(self, embedded: Tensor) -> Tensor:
        return embedded

    def attend(self, layer: int, hidden: Tensor, projected: Projected) -> Tensor:
        sharpness = self.sharpness(layer)
        if isinstance(sharpness, Tensor) or sharpness != 0.0:
            projected = projected._replace(query=self._sharpened(sharpness, projected.query), together=None)
        read = self._read_whole if self.chunk.cache is None else self._read_with_cache
        return read(layer, projected).transpose(1, 2)

    def _read_whole(self, layer: int, projected: Projected) -> Float[Tensor, "batch heads seq head_dim"]:
        query, key, value, together = projected
        if self.fused_rotations is None:
            query, local = self._rotated(query, self.query_rotation), self._rotated(key, self.key_rotation)
            addressed = local
            if self.addressed_rotation is not None:
                addressed = self._rotated(key, self.addressed_rotation)
        elif together is None:
            query, local, addressed = (x.transpose(1, 2) for x in self.fused_rotations.of(query, key, self.layout))
        else:
            return fused.attend_packed(
                together,
                key.shape[2],
                self.fused_rotations,
                self.layout,
                self.rule,
                competition=self.competition(layer),
                scale=self.scale,
            )
        return self._by_backend(layer, query, local, addressed, value.transpose(1, 2))

    def _read_with_cache(self, layer: int, projected: Projected) -> Float[Tensor, "batch heads seq head_dim"]:
        cache = self.chunk.cache
        assert cache is not None
        query, local = (
            self._rotated(projected.query, self.query_rotation),
            self._rotated(projected.key, self.key_rotation),
        )
        stored, values = cache.append(layer, local, projected.value.transpose(1, 2))
        if self.single:
            return self._one_token(layer, query, stored, values)
        addressed = stored
        if self.window is not None:
            stored = stored.clone()
            cache.rotate_keys(self.window.begin, self.window.rotation, layer)
        return self._by_backend(layer, query, stored, addressed, values)

    def _rotated(self, x: Tensor, rotation: Rotation) -> Float[Tensor, "batch heads seq head_dim"]:
        return rotate(x, rotation, self.layout).transpose(1, 2)

    def _sharpened(
        self, sharpness: float | Float[Tensor, "*models heads"], query: Float[Tensor, "batch seq heads head_dim"]
    ) -> Float[Tensor, "batch seq heads head_dim"]:
        """Scores grow with their query; it is rotated afterwards, which leaves lengths alone."""
        if isinstance(sharpness, Tensor) and sharpness.ndim == 2:  # of several models, each with a slice of the rows
            sharpness = sharpness.repeat_interleave(len(query) // len(sharpness), dim=0)[:, None]
        factor = 1 + self.rule.log_completed(self.chunk.wide)[..., None] * sharpness
        return (query * factor[..., None]).to(query.dtype)

    def commit(self) -> None:
        chunk, reading = self.chunk, self.reading
        if chunk.cache is None:
            return
        state = replace(
            chunk.state,
            tokens=chunk.tokens_after(),
            segmenter=reading.after,
            open_total=self.open_total,
            recent=None if self.carried is None else self.carried.recent,
            biases=self.biases if self.sees_all and reading.units.ends_any is False else {},
        )
        if self.window is not None:
            window = self.window
            # Two that are one without anchors.
            address = {} if self.carried is None else {"address": window.address}
            chunk.cache.keep_angles(window.begin, window.completed, rotated=window.rotated, **address)
        padded, has_memory = chunk.valid is not None, reading.units.has_memory
        chunk.cache.commit(chunk.ids.shape[1], state, padded=padded, has_memory=has_memory)

    def _by_backend(self, layer: int, query: Tensor, local: Tensor, addressed: Tensor, value: Tensor) -> Tensor:
        chunk, units = self.chunk, self.reading.units
        if chunk.share is not None:
            reach = units.seq_length if units.padded else units.longest or units.seq_length
            local, addressed, value = chunk.share.so_far(local, addressed, value, reach)
        attend = backend_function(chunk.backend, query, dropout=0.0, cached=chunk.cache is not None)
        return attend(
            query,
            local,
            addressed,
            value,
            self.rule,
            competition=self.competition(layer),
            scale=self.scale,
        )

    def _one_token(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        bias = self._one_token_bias(layer, query.dtype)
        grouped = query.shape[1] != key.shape[1]
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=self.scale, enable_gqa=grouped)
        return silence_padding(out, self.rule)

    def _one_token_bias(self, layer: int, dtype: torch.dtype) -> Float[Tensor, "batch heads 1 keys"] | None:
        """A fixed exponent gives all layers the same bias. Until a unit ends, all tokens have the same but for a column
        more: made with room for some, it is kept for them. None: all keys are read as they are."""
        keys = self.rule.key_count
        for name in ((layer, dtype), (None, dtype)):  # before exponents are selected, which takes an operation
            kept = self.biases.get(name)
            if kept is not None and kept.shape[-1] >= keys:
                return kept[..., :keys]
        competition = self.competition(layer)
        if self.sees_all and no_competition(competition):
            return None
        columns = with_room(keys) if self.sees_all else keys
        made = aligned(_single_bias(self.rule, competition, self.chunk.wide, columns).to(dtype))
        self.biases[layer if isinstance(competition, Tensor) else None, dtype] = made
        return made[..., :keys]


def _single_bias(
    rule: PairRule, competition: float | Tensor, dtype: torch.dtype, count: int
) -> Float[Tensor, "batch heads 1 columns"]:
    """What is added to the scores of a single query: -inf out of sight, the own unit's bonus. Where all is seen, also
    for columns to come, taken to be of the own unit."""
    columns = torch.arange(count, device=rule.start.device)
    own_unit = (columns >= rule.start)[:, None, None]
    bias = torch.zeros((), dtype=dtype, device=rule.start.device)
    if not no_competition(competition):
        bias = own_unit * rule.own_unit_bonus(competition, dtype)[..., None]
    if rule.query_memory is not None:
        bias = torch.where(rule.query_memory[:, None, None] & ~own_unit, -torch.inf, bias)
    if rule.key_valid is not None:
        itself = columns == rule.offset
        bias = torch.where((rule.key_valid | itself)[:, None, None], bias, -torch.inf)
    return bias


def _rule(chunk: Chunk, reading: Reading, single: bool) -> PairRule:
    units, earlier, cache = reading.units, reading.earlier, chunk.cache
    key_unit, key_valid, has_memory = None, None, units.has_memory
    if cache is not None:
        key_unit = None if single else cache.fact("unit", 0, chunk.columns)
        key_valid, has_memory = chunk.key_valid(), cache.has_memory or has_memory
    elif earlier is not None:
        key_unit = torch.cat((earlier.unit, units.unit), dim=1)
        key_valid = torch.cat((earlier.valid, units.valid), dim=1) if units.padded else None
    else:
        return PairRule.among(units)
    return PairRule(
        query_unit=units.unit,
        key_unit=key_unit,
        start=units.start,
        closes=units.closes,
        query_valid=units.valid if units.padded else None,
        key_valid=key_valid,
        query_memory=units.memory if has_memory else None,
        offset=units.offset,
    )


def _window(cache: Cache, chunk: Chunk, reading: Reading, by_slot: Tensor, carried: Carried | None) -> Window:
    """Columns, cached and new, that this call completes: at most the open unit's and the new ones."""
    begin = reading.before.open_from()
    old = cache.length - begin
    rotated_by_slot = by_slot if carried is None else by_slot - carried.by_slot
    if reading.completes_all(chunk):
        address, rotated = (x.expand(-1, old + 1, -1, -1) for x in (by_slot, rotated_by_slot))
        return Window(begin, None, address, rotated, rotation_of(rotated))

    def of_columns(angles: Tensor) -> Tensor:
        return torch.cat((angles[:, :1].expand(-1, old, -1, -1), reading.by_token(angles)), dim=1)

    rotated = of_columns(rotated_by_slot)
    address = rotated if carried is None else of_columns(by_slot)
    finished = reading.after.next_unit - reading.before.next_unit
    completed = torch.cat((reading.before.open_columns(begin) & (finished > 0), reading.slot < finished), dim=1)
    return Window(begin, completed, address, rotated, rotation_of(rotated).only_where(completed))
