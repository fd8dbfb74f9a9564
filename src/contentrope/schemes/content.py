"""``content``: every completed unit gets an address computed from its content. The method itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from contentrope.address import ContentAddress, sum_by_unit
from contentrope.attention import fused
from contentrope.attention.api import refuse_non_finite
from contentrope.checks import may_be_waited_for
from contentrope.config import ModelConfig
from contentrope.errors import InputError
from contentrope.frames import AddressedFrame, Chunk
from contentrope.frames.addressed import Reading
from contentrope.rotary import Rotation, rotate
from contentrope.schemes.addressed import AddressOptions, UnitReader
from contentrope.schemes.base import read_options


@dataclass(frozen=True, kw_only=True)
class Options(AddressOptions):
    noise: float = 0.0
    """Standard deviation of what is added to the angles in training, drawn anew for every unit and call."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise < 0:
            raise InputError(f"noise must be at least 0, got {self.noise}")


class Content(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        options = read_options("content", Options, config.options)
        self.noise = options.noise
        self.reader = UnitReader(config, options)
        self.address = ContentAddress(config.dim, config.key_heads, config.pair_count)

    def frame(self, chunk: Chunk) -> AddressedFrame:
        reading = self.reader.read(chunk)
        if not reading.completes_any(chunk):
            return self.reader.frame(chunk, reading, angles=None)
        angles, open_total = self._angles(chunk, reading)
        _refuse_non_finite(angles, chunk.embedded, reading)
        if self.training and self.noise:
            angles = angles + self.noise * torch.randn_like(angles)
        return self.reader.frame(chunk, reading, angles, open_total)

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
        turned = self._turn(chunk.embedded.to(chunk.wide), reading.local)
        sums = sum_by_unit(turned, reading.units, reading.slot, carried)
        if chunk.share is not None:
            sums = chunk.share.whole_units(sums, reading.units, reading.slot)
        return self.address(sums.total, sums.tokens), sums.open_total

    def _angles_in_two_kernels(self, chunk: Chunk, reading: Reading) -> Float[Tensor, "batch slots kv_heads pairs"]:
        """The normalised descriptors, and the angles of those slots that are units."""
        fused.require_device(chunk.embedded)
        from contentrope.kernels.address import unit_angles, unit_descriptors  # triton is needed only here

        norm, project, local, rotary = self.address.norm, self.address.project, reading.local, self.config.rotary
        normed, *_ = unit_descriptors(
            chunk.embedded, reading.slot, local.cos, local.sin, norm.weight, norm.bias, norm.eps, self.config.head_dim,
            rotary.pairs == "interleaved",
        )  # fmt: skip
        angles = unit_angles(normed, reading.slot, project.weight.float(), project.bias.float())
        return angles.unflatten(-1, self.address.shape)

    def _turn(self, embedded: Float[Tensor, "batch seq dim"], local: Rotation) -> Float[Tensor, "batch seq dim"]:
        """Embeddings turn with the frequencies of attention, head by head."""
        by_head = embedded.unflatten(-1, (self.config.heads, -1))
        return rotate(by_head, local, self.config.rotary.pairs).flatten(-2)

    def _open_total(self, chunk: Chunk, reading: Reading) -> Float[Tensor, "batch dim"]:
        """The open unit's running sum, brought up to date from the remembered ids where it is not."""
        cache, known, before = chunk.cache, chunk.state.open_total, reading.before
        assert cache is not None
        if known is not None:
            return known
        begin = before.open_from()
        embedded = chunk.embedding(cache.fact("ids", begin)).to(chunk.wide)
        turned = self._turn(embedded, self.reader.local_rotation(cache.fact("local", begin), chunk))
        if reading.completes_all(chunk):
            return turned.sum(1)
        columns = torch.arange(begin, cache.length, device=chunk.ids.device)
        of_open_unit = (before.next_local > 0) & (columns >= before.start)
        if cache.padded:
            of_open_unit = of_open_unit & cache.fact("valid", begin).bool()
        return torch.where(of_open_unit[..., None], turned, 0.0).sum(1)


def _refuse_non_finite(
    addresses: Float[Tensor, "batch slots kv_heads pairs"],
    embedded: Float[Tensor, "batch seq dim"],
    reading: Reading,
) -> None:
    """Name the token whose embedding is to blame; where none is, the first token of the unit without an address."""
    if not may_be_waited_for(addresses) or math.isfinite(addresses.detach().sum().item()):
        return
    refuse_non_finite("embeddings", embedded)
    refuse_non_finite("addresses", reading.by_token(addresses))
