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
from jaxtyping import Float, Int
from torch import Tensor

from contentrope.attention import PairRule, backend_function, fused
from contentrope.attention.api import REGISTERED
from contentrope.attention.pairs import States, aligned, no_competition, silence_padding, with_room
from contentrope.cache import Cache, Rotated
from contentrope.context.chunk import Chunk, Projected
from contentrope.rotary import Rotation, rotate, rotation_of
from contentrope.units import SegmenterState, Units
from contentrope.window import Leaving, Moved


class Reading(NamedTuple):
    """The units of a chunk, the segmenter's state around it, and the local rotations."""

    units: Units
    before: SegmenterState
    after: SegmenterState
    local: Rotation
    """Of each token's place in its unit; with a window and a cache, that of its far query."""
    earlier: Units | None = None
    """Under context parallelism: the units of the columns that lower ranks hold."""
    width: int = 0
    """Of the near window, in tokens; 0: none."""
    begins: Int[Tensor, "batch seq"] | None = None
    """With a window, the position at which each token's unit begins, -1 for padding and memory."""
    moved: Moved | None = None
    """With a window and columns before: what the call does to it."""

    def by_token(self, by_slot: Float[Tensor, "batch slots *rest"]) -> Float[Tensor, "batch seq *rest"]:
        if self.units.seq_length == 1:  # slots are as many as tokens
            return by_slot
        index = self.slot.view(*self.slot.shape, *(1 for _ in by_slot.shape[2:]))
        return by_slot.gather(1, index.expand(-1, -1, *by_slot.shape[2:]))

    @property
    def slot(self) -> Int[Tensor, "batch seq"]:
        """The token's unit, counted from the one that was open before this call: 0..seq-1."""
        return self.units.unit - self.before.next_unit if self.before.columns else self.units.unit

    def needs_addresses(self, chunk: Chunk) -> bool:
        """Whether the call reads keys at addresses that were not there before."""
        return self.leaving is not None if self.width and chunk.cache is not None else self.completes_any(chunk)

    @property
    def leaving(self) -> Leaving | None:
        """With a window, cached and new columns that leave it."""
        return None if self.moved is None else self.moved.leaving

    def completes_any(self, chunk: Chunk) -> bool:
        """False for a single token after others that closes no unit: decoding, most of the time. No address is needed
        then. Longer chunks are taken to complete one, which avoids a GPU sync."""
        return chunk.cache is None or chunk.ids.shape[1] > 1 or self.units.completes_any()

    def completes_all(self, chunk: Chunk) -> bool:
        """Whether all columns from where the open unit began are of the unit that this call completes, as far as the
        host knows: a single token after others that ends the unit of the only row."""
        cache = chunk.cache
        return cache is not None and not cache.columns.padded and chunk.ids.numel() == 1 and self.units.ends_any is True


class AddressedContext:
    """``angles`` is the address of every slot; None: the identity, or no address is needed."""

    def __init__(
        self,
        chunk: Chunk,
        reading: Reading,
        *,
        angles: Float[Tensor, "batch slots kv_heads pairs"] | None,
        competition: Callable[[int], float | Tensor],
        sharpness: Callable[[int], float | Tensor],
        open_total: Float[Tensor, "batch dim"] | None = None,
    ) -> None:
        self.chunk = chunk
        self.reading = reading
        self.competition = competition
        self.sharpness = sharpness
        self.open_total = open_total
        self.layout = chunk.config.rotary.pairs
        self.scale = 1 / math.sqrt(chunk.config.head_dim)
        # The reference defines single tokens too: it takes the general way.
        self.single = chunk.cache is not None and chunk.ids.shape[1] == 1 and chunk.backend != "reference"
        self.rule = _rule(chunk, reading, self.single)
        self.sees_all = self.rule.key_valid is None and self.rule.query_memory is None
        self.biases = dict(chunk.state.biases) if self.single and self.sees_all else {}
        self.query_rotation = self.key_rotation = reading.local
        self.far_query_rotation: Rotation | None = None
        self.addressed_rotation: Rotation | None = None
        self.fused_rotations: fused.FusedRotations | None = None
        self.readdressed: Rotated | None = None
        self._set_rotations(angles)

    def _set_rotations(self, by_slot: Float[Tensor, "batch slots kv_heads pairs"] | None) -> None:
        if by_slot is None:
            return
        reading, cache, closes = self.reading, self.chunk.cache, self.reading.units.closes
        if self.chunk.backend == "fused" and cache is None:
            REGISTERED["fused"].require(self.chunk.embedded, self.chunk.config.head_dim)
            self.fused_rotations = fused.rotations_of(reading.local, by_slot, reading.slot, closes)
            return
        address = rotation_of(reading.by_token(by_slot))
        of_query = address if reading.completes_all(self.chunk) else address.only_where(closes)
        self.query_rotation = reading.local.then(of_query)
        if cache is None:
            self.addressed_rotation = reading.local.then(address)
        else:
            self.readdressed = _completed(cache, self.chunk, reading, by_slot)
            if self.single:
                # A single token needs no key in both versions: its own is stored as its query is rotated.
                self.key_rotation = self.query_rotation
                self._rotate_cached_keys(cache, self.readdressed)

    def _rotate_cached_keys(self, cache: Cache, columns: Rotated) -> None:
        """For a single token, those of earlier tokens in all layers at once, before the first layer reads them."""
        old = cache.length - columns.begin
        if old > 0:
            cos, sin, _ = columns.rotations[0]
            cache.rotate_keys(columns.begin, Rotation(cos[:, :old], sin[:, :old]))

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
            near_query, local = self._query_and_key(projected)
            addressed = local if self.addressed_rotation is None else self._rotated(key, self.addressed_rotation)
            far_query = self._far_query(query)
            return self._by_backend(layer, States(near_query, local, addressed, value.transpose(1, 2), far_query))
        if together is None:
            rotated = self.fused_rotations.versions_of(query, key, self.layout)
            query, local, addressed, *far = (x.transpose(1, 2) for x in rotated)
            return self._by_backend(layer, States(query, local, addressed, value.transpose(1, 2), *far))
        return fused.attend_packed(
            together,
            key.shape[2],
            self.fused_rotations,
            self.layout,
            self.rule,
            competition=self.competition(layer),
            scale=self.scale,
        )

    def _read_with_cache(self, layer: int, projected: Projected) -> Float[Tensor, "batch heads seq head_dim"]:
        cache = self.chunk.cache
        assert cache is not None
        query, local = self._query_and_key(projected)
        stored, values = cache.append(layer, local, projected.value.transpose(1, 2))
        far_query = self._far_query(projected.query)
        if self.single:
            return self._one_token(layer, States(query, stored, stored, values, far_query))
        addressed = stored
        if self.readdressed is not None:
            stored = stored.clone()
            cache.rotate_keys(self.readdressed.begin, self.readdressed.rotations[0], layer)
        return self._by_backend(layer, States(query, stored, addressed, values, far_query))

    def _query_and_key(self, projected: Projected) -> tuple[Tensor, Tensor]:
        """Queries and local keys, rotated at once where all of their heads share a rotation."""
        query, key, _, together = projected
        rotation = self.query_rotation
        if together is None or rotation is not self.key_rotation or rotation.cos.shape[-2] != 1:
            return self._rotated(query, rotation), self._rotated(key, self.key_rotation)
        heads, both = query.shape[2], query.shape[2] + key.shape[2]
        rotated = self._rotated(together.narrow(2, 0, both), rotation)
        return rotated.narrow(1, 0, heads), rotated.narrow(1, heads, both - heads)

    def _far_query(self, query: Float[Tensor, "batch seq heads head_dim"]) -> Tensor | None:
        return None if self.far_query_rotation is None else self._rotated(query, self.far_query_rotation)

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
            window=reading.moved.after if reading.moved else None,
            open_total=self.open_total,
            biases=self.biases if self.sees_all and reading.units.ends_any is False else {},
        )
        padded, has_memory = chunk.valid is not None, reading.units.has_memory
        chunk.cache.commit(chunk.ids.shape[1], state, self.readdressed, padded=padded, has_memory=has_memory)

    def _by_backend(self, layer: int, states: States) -> Tensor:
        chunk = self.chunk
        if chunk.share is not None:
            query, local, addressed, value, far_query = states
            local, addressed, value = chunk.share.so_far(local, addressed, value, self._reach())
            states = States(query, local, addressed, value, far_query)
        attend = backend_function(chunk.backend, states.query, cached=chunk.cache is not None)
        return attend(states, self.rule, competition=self.competition(layer), scale=self.scale)

    def _reach(self) -> int:
        """Columns over which local keys may be read, at most."""
        units = self.reading.units
        return units.seq_length if units.padded else units.longest or units.seq_length

    def _one_token(self, layer: int, states: States) -> Tensor:
        query, key, _, value, _ = states
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
        key_valid, has_memory = chunk.key_valid(), cache.columns.has_memory or has_memory
    elif earlier is not None:
        key_unit = torch.cat((earlier.unit, units.unit), dim=1)
        key_valid = torch.cat((earlier.valid, units.valid), dim=1) if units.padded else None
    else:
        return PairRule.among(units, reading.width)
    return PairRule(
        query_unit=units.unit,
        key_unit=key_unit,
        start=units.start,
        closes=units.closes,
        query_valid=units.valid if units.padded else None,
        key_valid=key_valid,
        query_memory=units.memory if has_memory else None,
        near=reading.moved.near if reading.moved else None,
        window=reading.width,
        offset=units.offset,
    )


def _completed(cache: Cache, chunk: Chunk, reading: Reading, by_slot: Tensor) -> Rotated:
    """The columns, cached and new, whose unit this call completes: at most the open unit's and the new ones."""
    begin = reading.before.open_from()
    old = cache.length - begin
    if reading.completes_all(chunk):
        address = by_slot.expand(-1, old + 1, -1, -1)
        return Rotated.by(begin, None, [address])
    address = torch.cat((by_slot[:, :1].expand(-1, old, -1, -1), reading.by_token(by_slot)), dim=1)
    finished = reading.after.next_unit - reading.before.next_unit
    completed = torch.cat((reading.before.open_columns(begin) & (finished > 0), reading.slot < finished), dim=1)
    return Rotated.by(begin, completed, [address])
