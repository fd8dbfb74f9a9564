"""Context parallelism: each rank of a group holds a contiguous slice of a text, all equally long, and its own logits.

Where slices meet, units are cut. Exchanged are:

- once a call the ids and masks: each rank finds the units of all tokens before its own by itself;
- once a call the sums of units that may be cut, two of each rank;
- in every layer addressed keys and values, and of local keys those that an open unit of the next rank may hold.

Shapes: batch, seq (the tokens of one rank), kv_heads, head_dim, dim; parts, two of each rank: the units of its first
and of its last token.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from contentrope.address import UnitSums
from contentrope.errors import InputError
from contentrope.units import Segmenter, SegmenterState, Units

MASKS = ("valid", "ends", "memory")
BACKENDS = ("tiled", "reference")
"""Of attention, those that read keys of columns before the queries."""


class Share(NamedTuple):
    """What a rank knows of a call."""

    group: Any
    rank: int
    size: int
    ids: Int[Tensor, "batch before"]
    """Of all lower ranks."""
    masks: dict[str, Bool[Tensor, "batch before"]]

    def read_before(self, segmenter: Segmenter) -> tuple[Units | None, SegmenterState]:
        """The units of the tokens before, and the segmenter's state after them."""
        state = segmenter.initial(len(self.ids), self.ids.device)
        if not self.rank:
            return None, state
        valid, ends, memory = map(self.masks.get, MASKS)
        return segmenter.advance(state, self.ids, valid=valid, ends=ends, memory=memory)

    def whole_units(self, sums: UnitSums, units: Units, slot: Int[Tensor, "batch seq"]) -> UnitSums:
        """Sums by unit where other ranks have parts of the first and the last one.

        All that hold a part add up the same parts in the same order: their addresses agree to the last bit.
        """
        number, last = units.unit[:, [0, -1]], slot[:, -1:, None]
        own = torch.cat((sums.total, sums.tokens[..., None]), dim=-1)
        ending = own.gather(1, last.expand(-1, -1, own.shape[-1]))
        # A rank that holds nothing but one unit has one part of it, not two.
        part = torch.cat((own[:, :1], torch.where(last > 0, ending, 0.0)), dim=1)
        parts, numbers = (_by_row(_gathered(x, self.group, self.size)) for x in (part, number))
        of_unit = numbers[:, None] == number[..., None]  # (batch, 2, parts)
        begun, ended = torch.where(of_unit[..., None], parts[:, None], 0.0).sum(2, keepdim=True).unbind(1)
        slots = torch.arange(own.shape[1], device=slot.device)[:, None]
        found = torch.where(slots == last, ended, torch.where(slots == 0, begun, own))
        return UnitSums(found[..., :-1], found[..., -1], sums.open_total)

    def so_far(
        self, local: Tensor, addressed: Tensor, value: Tensor, reach: int
    ) -> tuple[Float[Tensor, "batch kv_heads columns head_dim"], ...]:
        """The keys of both versions and the values, (batch, kv_heads, seq, head_dim), of all columns up to the own
        ones. An open unit reaches back over ``reach`` columns at most: of local keys other ranks give their last ones.
        Where no local key is read, addressed ones stand.
        """
        seq = local.shape[2]
        reach = max(1, min(reach, seq))
        # Gathered and used by every rank, the first too: the backward pass is a collective call.
        both = _gathered(torch.stack((addressed, value)), self.group, self.size)[: self.rank]
        tails = _gathered(local[:, :, seq - reach :], self.group, self.size)[: self.rank]
        mixed = torch.cat((both[:, 0, :, :, : seq - reach], tails), dim=3)
        before = (mixed, both[:, 0], both[:, 1])
        own = (local, addressed, value)
        return tuple(torch.cat((_in_a_row(x), mine), dim=2) for x, mine in zip(before, own, strict=True))


def share_of(group: Any, ids: Int[Tensor, "batch seq"], masks: dict[str, Tensor | None]) -> Share:
    """Exchange the tokens of a call; ``masks`` by name, as in :data:`MASKS`, None where there is none."""
    rank, size = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
    if rank < 0:
        raise InputError("this process is not a member of the group it was given; make the group with all that read")
    given = {name: masks[name] for name in MASKS if masks[name] is not None}
    _refuse_unlike(group, size, [*ids.shape, *(int(name in given) for name in MASKS)], ids.device)
    packed = torch.stack([ids.long(), *(mask.long() for mask in given.values())])  # type: ignore[union-attr]
    before = _gathered(packed, group, size)[:rank].permute(1, 2, 0, 3).flatten(2)
    return Share(
        group, rank, size, before[0], {name: mask.bool() for name, mask in zip(given, before[1:], strict=True)}
    )


def _refuse_unlike(group: Any, size: int, own: list[int], device: torch.device) -> None:
    """Ranks that were given something else would wait for each other for ever."""
    shapes_and_masks = _gathered(torch.tensor(own, device=device), group, size).tolist()
    if all(other == shapes_and_masks[0] for other in shapes_and_masks):
        return
    shapes = ", ".join(str(tuple(other[:2])) for other in shapes_and_masks)
    masks = ", ".join(
        "+".join(name for name, has in zip(MASKS, other[2:], strict=True) if has) or "none"
        for other in shapes_and_masks
    )
    raise InputError(
        f"processes that share a text were given ids of shape {shapes}, and masks: {masks}; give all of them as many "
        "rows and tokens, and the same masks; pad the last ones (valid=)"
    )


def _gathered(x: Tensor, group: Any, size: int) -> Tensor:
    """(size, *shape): of every rank, in order."""
    return _Gather.apply(x, group, size)


class _Gather(Function):
    """PyTorch's own have other names from version to version; these two calls have not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, size: int) -> Tensor:
        ctx.group = group
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(size)]
        torch.distributed.all_gather(parts, x.contiguous(), group=group)
        return torch.stack(parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        own = torch.empty_like(grad[0], memory_format=torch.contiguous_format)
        torch.distributed.reduce_scatter(own, list(grad.contiguous().unbind()), group=ctx.group)
        return own, None, None


def _by_row(x: Tensor) -> Tensor:
    """From (size, batch, 2, ...) to (batch, parts, ...)."""
    return x.transpose(0, 1).flatten(1, 2)


def _in_a_row(
    x: Float[Tensor, "before batch kv_heads seq head_dim"],
) -> Float[Tensor, "batch kv_heads columns head_dim"]:
    return x.permute(1, 2, 0, 3, 4).flatten(2, 3)
