"""A single token over a cache under a near window: examples, and what must be read in them, pair by pair."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

ROOM = 5
"""Columns behind those that are given, where nothing may be read: they hold NaN."""


class Example(NamedTuple):
    query: Tensor
    far_query: Tensor
    key: Tensor
    value: Tensor
    begin: Tensor
    taken: Tensor | None = None
    key_memory: Tensor | None = None
    hidden: Tensor | None = None
    scale: float = 0.3

    @property
    def positional(self) -> tuple[Tensor, ...]:
        return self[:5]

    @property
    def named(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("taken", "key_memory", "hidden", "scale")}

    def to(self, dtype: torch.dtype) -> Example:
        return self._replace(
            query=self.query.to(dtype),
            far_query=self.far_query.to(dtype),
            key=with_room(self.key, dtype),
            value=with_room(self.value, dtype),
        )


def with_room(columns: Tensor, dtype: torch.dtype) -> Tensor:
    """The same columns as a view into a larger cache."""
    batch, heads, length, dim = columns.shape
    cache = torch.full((batch, heads, length + ROOM, dim), math.nan, dtype=dtype, device=columns.device)
    cache[:, :, :length] = columns
    return cache[:, :, :length]


def example(
    seed: int = 0,
    *,
    begins: tuple[int, ...] = (5, 11),
    columns: int = 20,
    kv_heads: int = 2,
    group: int = 1,
    head_dim: int = 8,
    taken: str = "none",
    memory: bool = False,
    hidden: str = "none",
    dtype: torch.dtype = torch.float32,
) -> Example:
    """``begins`` are counted as parts of the columns where there are fewer."""
    generator = torch.Generator().manual_seed(seed)
    batch, heads = len(begins), kv_heads * group

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    key, value = (normal(batch, kv_heads, columns, head_dim) for _ in range(2))
    size = {"none": None, "one": (1, 1, 1), "by row": (batch, 1, 1), "by head": (1, heads, 1), "all": (batch, heads, 1)}
    shape = size[taken]
    marks = torch.rand(2, batch, columns, generator=generator) < 0.3
    marks[1, :, -1] = False  # the token sees itself
    if hidden == "a row":
        marks[1, 0] = True
    found = Example(
        normal(batch, heads, 1, head_dim),
        normal(batch, heads, 1, head_dim),
        key,
        value,
        torch.tensor(begins)[:, None].clamp(max=columns),
        None if shape is None else 3 * torch.rand(shape, generator=generator),
        marks[0] if memory else None,
        None if hidden == "none" else marks[1],
    )
    return found.to(dtype)


EXAMPLES: dict[str, st.SearchStrategy[Any]] = {
    "seed": st.integers(0, 10**6),
    "begins": st.lists(st.integers(0, 90), min_size=1, max_size=3).map(tuple),
    "columns": st.integers(1, 90),
    "kv_heads": st.integers(1, 3),
    "group": st.integers(1, 4),
    "head_dim": st.sampled_from([2, 8, 20]),
    "taken": st.sampled_from(["none", "one", "by row", "by head", "all"]),
    "memory": st.booleans(),
    "hidden": st.sampled_from(["none", "some", "a row"]),
}
"""Of :func:`example`; where a begin lies behind the columns all are read far."""


def expected(given: Example) -> tuple[Tensor, Tensor]:
    """The output in float64, and by how much it may differ for every rounding: scores err by their size, and so do the
    weights that come of them."""
    query, far_query, key, value = (x.double() for x in given[:4])
    batch, heads, _, dim = query.shape
    out, slack = torch.zeros(batch, heads, 1, dim, dtype=torch.float64), torch.zeros(batch, heads, 1, 1).double()
    for row in range(batch):
        for head in range(heads):
            kv_head = head * key.shape[1] // heads
            scores, places = [], []
            for column in range(key.shape[2]):
                if given.hidden is not None and bool(given.hidden[row, column]):
                    continue
                is_memory = given.key_memory is not None and bool(given.key_memory[row, column])
                is_far = is_memory or column < int(given.begin[row])
                reader = far_query if is_far else query
                score = given.scale * float(reader[row, head, 0] @ key[row, kv_head, column])
                if is_far and given.taken is not None:
                    score -= float(given.taken.expand(batch, heads, 1)[row, head])
                scores.append(score)
                places.append(column)
            if scores:
                weights = torch.tensor(scores, dtype=torch.float64).softmax(0)
                out[row, head, 0] = weights @ value[row, kv_head, places]
                slack[row, head] = (1 + max(map(abs, scores))) * value[row, kv_head, places].abs().max()
    return out, slack


def worst(found: Tensor, given: Example) -> float:
    """The error in roundings of the dtype; zero has none. NaN is no number of them."""
    right, slack = expected(given)
    error = (found.double() - right).abs()
    if not bool(error.isfinite().all()):
        return math.inf
    # Where nothing may be lost, nothing is counted but an error.
    roundings = torch.where(slack > 0, error / slack.clamp(min=1e-300), torch.where(error > 0, math.inf, 0.0))
    return float(roundings.max()) / torch.finfo(found.dtype).eps
