"""``content``: every completed unit gets an address computed from its content. The method itself."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from contentrope.address import ContentAddress, sum_by_slot, sum_by_unit
from contentrope.attention.api import REGISTERED, refuse_non_finite
from contentrope.config import ModelConfig
from contentrope.context import AddressedContext, Chunk
from contentrope.context.addressed import Reading
from contentrope.rotary import Rotation, rotate
from contentrope.schemes.addressed import CompetitionOptions, UnitReader
from contentrope.schemes.base import Scheme
from contentrope.units.table import may_sync
from contentrope.window import Leaving


class Content(Scheme):
    name = "content"
    Options = CompetitionOptions
    reads_units = knows_memory_units = shares_texts = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.config = config
        self.reader = UnitReader(config, self.options)
        self.address = ContentAddress(config.dim, config.key_heads, config.pair_count)

    def context(self, chunk: Chunk) -> AddressedContext:
        reading = self.reader.read(chunk)
        if not reading.needs_addresses(chunk):
            return self.reader.context(chunk, reading, angles=None)
        if reading.leaving is not None:
            return self.reader.context(chunk, reading, self._angles_of_columns(chunk, reading.leaving))
        angles, open_total = self._angles(chunk, reading)
        _refuse_non_finite(angles, chunk.embedded, reading.by_token)
        return self.reader.context(chunk, reading, angles, open_total)

    def _angles_of_columns(self, chunk: Chunk, leaving: Leaving) -> Float[Tensor, "batch columns kv_heads pairs"]:
        """The address of each of these columns, from the ids and places that the cache holds. Where the first unit or
        the last is cut, its keys are not rotated."""
        begin, end, cache = leaving.begin, leaving.end, chunk.cache
        assert cache is not None
        ids, unit, local = (cache.fact(name, begin, end) for name in ("ids", "unit", "local"))
        valid, slot = cache.fact("valid", begin, end).bool(), unit - unit[:, :1]
        embedded = chunk.embedding(ids)
        rotated = self._rotated(embedded.to(chunk.wide), self.reader.local_rotation(local, chunk))
        padded = cache.columns.padded or chunk.valid is not None
        by_slot = self.address(*sum_by_slot(rotated, slot, valid, padded=padded))

        def by_token(of_slots: Tensor) -> Tensor:
            return of_slots.gather(1, slot[..., None, None].expand(-1, -1, *of_slots.shape[2:]))

        _refuse_non_finite(by_slot, embedded, by_token)
        return by_token(by_slot)

    def _angles(
        self, chunk: Chunk, reading: Reading
    ) -> tuple[Float[Tensor, "batch slots kv_heads pairs"], Float[Tensor, "batch dim"] | None]:
        """The address of every slot, and for a cache the sum of the unit that is open."""
        of_one_model = self.address.norm.weight.ndim == 1
        if chunk.backend == "fused" and chunk.cache is None and chunk.valid is None and of_one_model:
            return self._angles_in_two_kernels(chunk, reading), None
        carried = None
        if chunk.cache is not None:
            carried = self._open_total(chunk, reading), reading.before.next_local[:, 0]
        rotated = self._rotated(chunk.embedded.to(chunk.wide), reading.local)
        sums = sum_by_unit(rotated, reading.units, reading.slot, carried)
        if chunk.share is not None:
            sums = chunk.share.whole_units(sums, reading.units, reading.slot)
        return self.address(sums.total, sums.tokens), sums.open_total

    def _angles_in_two_kernels(self, chunk: Chunk, reading: Reading) -> Float[Tensor, "batch slots kv_heads pairs"]:
        """The normalised descriptors, and the angles of those slots that are units."""
        REGISTERED["fused"].require(chunk.embedded, self.config.head_dim)
        from contentrope.kernels.address import unit_angles, unit_descriptors  # triton is needed only here

        norm, project, local, rotary = self.address.norm, self.address.project, reading.local, self.config.rotary
        normed, *_ = unit_descriptors(
            chunk.embedded, reading.slot, local.cos, local.sin, norm.weight, norm.bias, norm.eps, self.config.head_dim,
            rotary.pairs == "interleaved",
        )  # fmt: skip
        angles = unit_angles(normed, reading.slot, project.weight.float(), project.bias.float())
        return angles.unflatten(-1, self.address.shape)

    def _rotated(self, embedded: Float[Tensor, "batch seq dim"], local: Rotation) -> Float[Tensor, "batch seq dim"]:
        """Embeddings rotated with the frequencies of attention, head by head."""
        by_head = embedded.unflatten(-1, (self.config.heads, -1))
        return rotate(by_head, local, self.config.rotary.pairs).flatten(-2)

    def _open_total(self, chunk: Chunk, reading: Reading) -> Float[Tensor, "batch dim"]:
        """The open unit's running sum, brought up to date from the cached ids where it is not."""
        cache, before = chunk.cache, reading.before
        assert cache is not None
        if chunk.state.open_total is not None:
            return chunk.state.open_total
        begin = before.open_from()
        embedded = chunk.embedding(cache.fact("ids", begin)).to(chunk.wide)
        rotated = self._rotated(embedded, self.reader.local_rotation(cache.fact("local", begin), chunk))
        if reading.completes_all(chunk):
            return rotated.sum(1)
        of_open_unit = before.open_columns(begin)
        if cache.columns.padded:
            of_open_unit = of_open_unit & cache.fact("valid", begin).bool()
        return torch.where(of_open_unit[..., None], rotated, 0.0).sum(1)


def _refuse_non_finite(
    addresses: Float[Tensor, "batch slots kv_heads pairs"],
    embedded: Float[Tensor, "batch seq dim"],
    by_token: Callable[[Tensor], Tensor],
) -> None:
    """Name the token whose embedding is to blame; where none is, the first token of the unit without an address."""
    if not may_sync(addresses) or math.isfinite(addresses.detach().sum().item()):
        return
    refuse_non_finite("embeddings", embedded)
    refuse_non_finite("addresses", by_token(addresses))
