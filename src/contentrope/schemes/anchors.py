"""Where an open unit stands: it has no address of its own yet, but may go on from a unit before it.

A head anchored d units back reads the unit d before the open one as if the open one continued it: at that unit's
address, with positions counted from its start. It is ordinary RoPE between those two units, over d + 1 units at most.
Every other unit it sees turned by how its address differs from the anchor's. Nothing grows with the context, and the
attention code does not know of it.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from contentrope.config import ModelConfig
from contentrope.errors import InputError
from contentrope.frames import Chunk
from contentrope.frames.addressed import Carried, Reading
from contentrope.rotary import PositionRotations

Recent = tuple[Float[Tensor, "batch units kv_heads pairs"], Float[Tensor, "batch units"]]


class Anchors:
    """``back`` holds, for every key/value head, how many units back its anchor lies; 0: it has none."""

    def __init__(self, config: ModelConfig, back: tuple[int, ...], rotations: PositionRotations) -> None:
        whole = all(isinstance(d, int) and not isinstance(d, bool) and d >= 0 for d in back)
        if len(back) != config.key_heads or not whole or not any(back):
            raise InputError(
                f"anchors {back} must be {config.key_heads} whole numbers, one per key/value head: so many units back, "
                "0 for none, not all of them 0"
            )
        if config.reader:
            raise InputError(f"anchors give units an order, memory units have none; leave out reader={config.reader}")
        self.back = back
        self.reach = max(back)
        self.rotations = rotations

    def carried(
        self, chunk: Chunk, reading: Reading, angles: Float[Tensor, "batch slots kv_heads pairs"] | None
    ) -> Carried:
        """What the unit of every slot carries while it is open. ``angles`` are the addresses of the slots."""
        if reading.units.has_memory:
            raise InputError("anchors give units an order, memory units have none; leave out memory=")
        address, length = self._recent(chunk, reading)
        slots = 1
        if angles is not None:
            slots = angles.shape[1]
            address = torch.cat((address.to(angles.dtype), angles), dim=1)
            length = torch.cat((length, _lengths(reading, slots, length.dtype)), dim=1)
        by_head = [self._of_head(head, slots, address, length, reading) for head in range(len(self.back))]
        finished = reading.after.next_unit - reading.before.next_unit
        newest = finished + torch.arange(self.reach, device=finished.device)
        index = newest[..., None, None].expand(-1, -1, *address.shape[2:])
        return Carried(torch.stack(by_head, dim=2), (address.gather(1, index), length.gather(1, newest)))

    def _of_head(
        self, head: int, slots: int, address: Tensor, length: Tensor, reading: Reading
    ) -> Float[Tensor, "batch slots pairs"]:
        """Address of the anchor, turned on by as many positions as there are tokens from its start to each slot's."""
        back, by_head = self.back[head], self.rotations.inverse_frequency
        if not back:
            return torch.zeros_like(address[:, :slots, head])
        frequency = by_head[head if len(by_head) > 1 else 0]

        def units_before(x: Tensor, d: int) -> Tensor:
            return x[:, self.reach - d : self.reach - d + slots]

        tokens = sum(units_before(length, d) for d in range(1, back + 1))
        moved = torch.as_tensor(tokens)[..., None] * frequency.to(address.dtype)
        moved_on = units_before(address, back)[:, :, head] + moved
        has_anchor = reading.before.next_unit + torch.arange(slots, device=length.device) >= back
        return torch.where(has_anchor[..., None], moved_on, 0.0)

    def _recent(self, chunk: Chunk, reading: Reading) -> Recent:
        if chunk.state.recent is not None:
            return chunk.state.recent
        cache, open_unit, units = chunk.cache, reading.before.next_unit, range(self.reach, 0, -1)
        if cache is None:
            rows = chunk.embedded.new_zeros(len(chunk.ids), self.reach, dtype=chunk.wide)
            shape = (chunk.config.key_heads, chunk.config.pair_count)
            return rows[..., None, None].expand(-1, -1, *shape), rows
        address = torch.stack([cache.address_of(open_unit - d) for d in units], dim=1).to(chunk.wide)
        return address, torch.cat([cache.tokens_of(open_unit - d) for d in units], dim=1).to(chunk.wide)


def _lengths(reading: Reading, slots: int, dtype: torch.dtype) -> Float[Tensor, "batch slots"]:
    """Tokens of each slot's unit, those of earlier calls included."""
    counted = torch.zeros(len(reading.slot), slots, dtype=dtype, device=reading.slot.device)
    counted = counted.scatter_add(1, reading.slot, reading.units.valid.to(dtype))
    before = torch.nn.functional.pad(reading.before.next_local.to(dtype), (0, slots - 1))
    return counted + before
