"""Reading through a cache, reading without one, and looking into a cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import contentrope as cr
from tests.support import VARIANTS, VOCABULARY

TOLERANCE = 1e-12
"""Of logits of about 4. Rounding grows with the weights: tests/fuzz measures by how much."""
BATCH, SEQ = 2, 17
MARKER = VOCABULARY - 1

Masks = dict[str, Tensor]

every_scheme = pytest.mark.parametrize("scheme", VARIANTS)


def at_once(model: cr.Transformer, ids: Tensor, masks: Masks | None = None) -> Tensor:
    torch.manual_seed(3)
    with torch.no_grad():
        return model(ids, **(masks or {}))


def new_cache(model: cr.Transformer, batch: int = BATCH, max_tokens: int | None = SEQ) -> cr.Cache:
    # As in at_once: the schemes that draw at random draw the same.
    torch.manual_seed(3)
    return model.new_cache(batch, max_tokens=max_tokens)


def columns(masks: Masks, begin: int, end: int) -> Masks:
    return {name: mask[:, begin:end] for name, mask in masks.items()}


def read(
    model: cr.Transformer, cache: cr.Cache, ids: Tensor, sizes: Sequence[int], masks: Masks | None = None
) -> Tensor:
    """Read the columns of ``ids`` that the cache has not read yet, in chunks."""
    parts, step = [], 0
    while cache.length < ids.shape[1]:
        begin, end = cache.length, min(cache.length + sizes[step % len(sizes)], ids.shape[1])
        parts.append(model(ids[:, begin:end], cache=cache, **columns(masks or {}, begin, end)))
        step += 1
    return torch.cat(parts, dim=1)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


class Snapshot(NamedTuple):
    keys: Tensor  # (layers, batch, kv_heads, columns, head_dim)
    values: Tensor
    addressed: Tensor  # (batch, columns)
    storage: tuple[int, ...]


def snapshot(cache: cr.Cache) -> Snapshot:
    keys, values = (torch.stack(parts)[..., : cache.length, :].clone() for parts in (cache.keys, cache.values))
    storage = tuple(x.data_ptr() for x in (*cache.keys, *cache.values, cache.fact("ids", 0, 1)))
    return Snapshot(keys, values, cache.columns.rotated.clone(), storage)
