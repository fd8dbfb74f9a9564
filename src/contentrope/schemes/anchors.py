"""What an open unit carries: it has no address of its own yet, but may stand at that of a unit before it.

A head anchored d units back sees the unit d before the open one unturned, and every other unit turned by how its
address differs from that one's. Nothing grows with the context, and the attention code does not know of it.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from contentrope.config import ModelConfig
from contentrope.errors import InputError
from contentrope.frames import Chunk
from contentrope.frames.addressed import Carried, Reading


class Anchors:
    """``back`` holds, for every key/value head, how many units back its anchor lies; 0: it has none."""

    def __init__(self, config: ModelConfig, back: tuple[int, ...]) -> None:
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

    def carried(
        self, chunk: Chunk, reading: Reading, angles: Float[Tensor, "batch slots kv_heads pairs"] | None
    ) -> Carried:
        """What the unit of every slot carries while it is open. ``angles`` are the addresses of the slots."""
        if reading.units.has_memory:
            raise InputError("anchors give units an order, memory units have none; leave out memory=")
        recent = self._recent(chunk, reading)
        known = recent if angles is None else torch.cat((recent.to(angles.dtype), angles), dim=1)
        slots = 1 if angles is None else angles.shape[1]
        by_head = [
            known[:, self.reach - d : self.reach - d + slots, head] if d else torch.zeros_like(known[:, :slots, head])
            for head, d in enumerate(self.back)
        ]
        finished = reading.after.next_unit - reading.before.next_unit
        newest = finished + torch.arange(self.reach, device=finished.device)
        index = newest[..., None, None].expand(-1, -1, *known.shape[2:])
        return Carried(torch.stack(by_head, dim=2), known.gather(1, index))

    def _recent(self, chunk: Chunk, reading: Reading) -> Float[Tensor, "batch units kv_heads pairs"]:
        if chunk.state.recent is not None:
            return chunk.state.recent
        cache, open_unit = chunk.cache, reading.before.next_unit
        if cache is None:
            shape = (len(chunk.ids), self.reach, chunk.config.key_heads, chunk.config.pair_count)
            return torch.zeros(shape, dtype=chunk.wide, device=chunk.ids.device)
        return torch.stack([cache.address_of(open_unit - d) for d in range(self.reach, 0, -1)], dim=1).to(chunk.wide)
