"""KV caches of document sets, made once and kept while there is room: the least recently used one goes first."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

from contentrope.serving.documents import Documents
from contentrope.store import SetCache

Keys = tuple[str, ...]


class Prefixes:
    """``most``: bytes."""

    def __init__(self, documents: Documents, most: float) -> None:
        self.documents, self.most = documents, most
        self._kept: OrderedDict[Keys, SetCache] = OrderedDict()

    def get(self, keys: Keys) -> SetCache:
        """The cache of a set, which stays as it is: rows are made with :func:`rows_of`."""
        if keys not in self._kept:
            self._kept[keys] = self.documents.cache(keys)
        self._kept.move_to_end(keys)
        found = self._kept[keys]
        while len(self._kept) > 1 and self.bytes > self.most:
            self._kept.popitem(last=False)
        if self.bytes > self.most:
            self._kept.clear()
        return found

    @property
    def bytes(self) -> int:
        return sum(bytes_of(cache) for cache in self._kept.values())

    def forget(self, key: str) -> None:
        """A document is gone, so no set with it is asked for again."""
        for keys in [keys for keys in self._kept if key in keys]:
            del self._kept[keys]


def bytes_of(cache: SetCache) -> int:
    return sum(x.nbytes for x in _tensors(cache))


def rows_of(cache: SetCache, rows: int) -> SetCache:
    """A copy with so many rows, for questions to be read behind."""
    # Keys and values are copied once, by repeating them, unless there is nothing to repeat.
    shared = {id(x): x for x in _tensors(cache)} if rows > 1 else {}
    made: SetCache = copy.deepcopy(cache, shared)
    if rows > 1:
        made.batch_repeat_interleave(rows)
    return made


def _tensors(cache: SetCache) -> list[Any]:
    layers: list[Any] = [layer for layer in cache.layers[:-1] if layer.is_initialized]  # type: ignore[union-attr]
    return [x for layer in layers for x in (layer.keys, layer.values) if x is not None]
