"""KV caches of document sets, made once and kept while there is room: the least recently used one goes first."""

from __future__ import annotations

from collections import OrderedDict

from contentrope.serving.documents import Documents
from contentrope.store import SetCache

Keys = tuple[str, ...]


class Prefixes:
    """``most``: bytes."""

    def __init__(self, documents: Documents, most: float) -> None:
        self.documents, self.most = documents, most
        self._kept: OrderedDict[Keys, SetCache] = OrderedDict()

    def get(self, keys: Keys) -> SetCache:
        """The cache of a set, which stays as it is: rows for questions are made with ``copied``."""
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
        return sum(cache.nbytes for cache in self._kept.values())

    def forget(self, key: str) -> None:
        """A document is gone, so no set with it is asked for again."""
        for keys in [keys for keys in self._kept if key in keys]:
            del self._kept[keys]
