"""What an attached model attends to: the weights of every layer and head, column by column or summed over groups.

What attention returns is linear in the values. Given values that are 1 in one group of columns and 0 elsewhere, it
returns that group's share: no second formula of attention, and as many readings as there are groups, not columns.

Shapes: queries are the tokens of one call; columns, all tokens read so far.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from contentrope.errors import InputError
from contentrope.hf.adapter import adapter_of
from contentrope.hf.attention import Read
from contentrope.hf.frame import Frame
from contentrope.hf.probe import evaluating

Weights = Float[Tensor, "batch heads queries groups"]


def attention_weights(
    model: Any, input_ids: Int[Tensor, "batch seq"], *, groups: Int[Tensor, "batch seq"] | None = None, **inputs: Any
) -> list[Weights]:
    """How much each token attends to each column, or to each group of columns, layer by layer.

    A token's weights sum to one (to less beside attention sinks). ``inputs``: what else the model is called with. The
    model computes as it does in evaluation.

    >>> import transformers
    >>> import contentrope.hf as chf
    >>> sizes = dict(vocab_size=9, hidden_size=16, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2)
    >>> model = chf.attach(transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)), units={0})
    >>> ids, line = torch.tensor([[3, 0, 5, 4]]), torch.tensor([[0, 0, 1, 1]])
    >>> first, second = attention_weights(model, ids, groups=line)
    >>> first.shape, first[0, 0, 0].tolist()
    (torch.Size([1, 2, 4, 2]), [1.0, 0.0])
    """
    with evaluating(model), looking(model, groups) as calls:
        model(input_ids=input_ids, **inputs)
    return calls[-1]


@contextmanager
def looking(
    model: Any, groups: Int[Tensor, "batch columns"] | None = None, *, last: int | None = None
) -> Iterator[list[list[Weights]]]:
    """The weights of every call of the model while it lasts, layer by layer: around ``generate``, of every token.

    ``groups`` numbers columns; None: each is one of its own. Columns behind those that are numbered, such as tokens
    that are written meanwhile, are one more group. ``last``: of so many queries at the end of a call; None: of all.
    """
    adapter, calls = adapter_of(model), list[list[Weights]]()
    if adapter.look is not None:
        raise InputError("someone looks into this model already: leave that block first")
    if groups is not None and (groups.ndim != 2 or groups.numel() == 0 or int(groups.min()) < 0):
        raise InputError(f"groups must number columns from 0 on, (batch, columns); got {_described(groups)}")
    if last is not None and last < 1:
        raise InputError(f"last must be 1 or more queries, or None for all; got {last}")
    first, members = min(adapter.layers), dict[tuple, Tensor]()

    def look(layer: int, frame: Frame, value: Tensor, read: Read) -> None:
        if layer == first:
            calls.append([])
            members.clear()
        alike = value.shape[2], value.dtype, value.device  # most layers are: made once for them
        if alike not in members:
            members[alike] = _membership(value, frame.total, groups)
        calls[-1].append(_shares(value, members[alike], read, last))

    adapter.look = look
    try:
        yield calls
    finally:
        adapter.look = None


def _membership(
    value: Float[Tensor, "batch kv_heads keys head_dim"], total: int, groups: Int[Tensor, "batch columns"] | None
) -> Float[Tensor, "batch keys groups"]:
    """Which group each of the keys is in. They are all columns, the last of them, or all and room behind."""
    batch, keys = value.shape[0], value.shape[2]
    if groups is None:
        numbers = torch.arange(total).expand(batch, -1)
    else:
        if len(groups) not in (1, batch):
            raise InputError(f"groups has {len(groups)} rows, the call {batch}")
        more = max(0, total - groups.shape[1])
        numbers = F.pad(groups, (0, more), value=int(groups.max()) + 1)[:, :total].expand(batch, -1)
    count = int(numbers.max()) + 1
    member = F.one_hot(numbers[:, max(0, total - keys) :].to(value.device), count).to(value.dtype)
    return F.pad(member, (0, 0, 0, keys - member.shape[1]))


def _shares(
    value: Float[Tensor, "batch kv_heads keys head_dim"],
    member: Float[Tensor, "batch keys groups"],
    read: Read,
    last: int | None,
) -> Weights:
    width, count = value.shape[-1], member.shape[-1]
    parts = []
    for some in member.split(width, dim=-1):
        given = F.pad(some, (0, width - some.shape[-1]))[:, None].expand_as(value).contiguous()
        found = read(given)[0].transpose(1, 2)
        parts.append(found if last is None else found[:, :, -last:])
    return torch.cat(parts, dim=-1)[..., :count]


def _described(groups: Tensor) -> str:
    return f"shape {tuple(groups.shape)}" if groups.ndim != 2 or not groups.numel() else f"{int(groups.min())}"
