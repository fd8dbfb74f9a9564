"""Documents of a store by ids of their own, shared by all who open the store."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from contentrope.errors import CheckpointError, InputError
from contentrope.store.document_files import DocumentFiles, NamedDocument
from contentrope.store.unit_store import UnitStore

ATTEMPTS = 3
log = logging.getLogger("contentrope.store")


class Work(NamedTuple):
    """What was computed for a text, and how long it took."""

    units: int
    tokens: int
    seconds: float
    others: int
    """Units that were stored before."""
    changed: int
    """How many of those have another checksum than before."""


class NamedDocuments:
    """What others have changed is seen after :meth:`refresh`. Computing is for one thread; reading ``by_id``, which is
    replaced and never changed, and refreshing are for any."""

    def __init__(self, store: UnitStore) -> None:
        self.store, self.files = store, DocumentFiles(store.place)
        self.meanwhile: Callable[[], None] = lambda: None
        """Called between the units of a text that is computed: others need not wait for all of a long one."""
        self.by_id: Mapping[str, NamedDocument] = MappingProxyType({})
        self._lock = threading.RLock()
        self._known_damage: set[str] = set()
        self.refresh()

    def refresh(self) -> None:
        """One listing of the files; those that are new are read."""
        with self._lock:
            found = self.files.look()
            if len(found) != len(self.by_id) or any(self.by_id.get(one.id) is not one for one in found):
                found.sort(key=lambda one: (one.created, one.id))
                self.by_id = MappingProxyType({one.id: one for one in found})
            for name in self.files.damaged.keys() - self._known_damage:
                log.error("document file %s of %s is damaged: %s", name, self.store.place, self.files.damaged[name])
            self._known_damage = set(self.files.damaged)

    def compute(self, text: str) -> tuple[NamedDocument, Work]:
        """A document, not yet among the others: the store computes the units of this text that it has not."""
        ((made,), work) = self.compute_all([text])
        return made, work

    def compute_all(
        self, texts: Sequence[str], progress: Callable[[int, int], object] | None = None
    ) -> tuple[list[NamedDocument], Work]:
        """``progress`` is that of :meth:`UnitStore.add`."""
        computed: list[int] = []

        def note(tokens: int, total: int) -> None:
            computed.append(tokens)
            if progress is not None:
                progress(tokens, total)
            self.meanwhile()

        before, began = self._checksums(), time.monotonic()
        for left in reversed(range(ATTEMPTS)):
            keys = self.store.add(texts, progress=note)
            try:
                units = self.store.units_of(keys)
                break
            except InputError:  # others have removed some of them meanwhile
                if not left:
                    raise
        sizes = self.store.catalog.contents.units
        made = [
            NamedDocument(
                id=f"doc-{uuid.uuid4().hex[:24]}",
                text=text,
                key=key,
                units=units[key],
                tokens=sum(sizes[unit][1].tokens for unit in units[key]),
            )
            for text, key in zip(texts, keys, strict=True)
        ]
        seconds = round(time.monotonic() - began, 6)
        after = self._checksums()
        changed = sum(after.get(unit, checksum) != checksum for unit, checksum in before.items())
        return made, Work(len(computed), computed[-1] if computed else 0, seconds, len(before), changed)

    def _checksums(self) -> dict[str, str]:
        """Of all stored units."""
        return {key: unit.digest for key, (_, unit) in self.store.catalog.contents.units.items()}

    def keep(self, documents: Sequence[NamedDocument]) -> None:
        """In the place of those with the same ids; all of them, or none if there is no room. Units that no document
        has any more are removed."""
        with self._lock:
            before = [self.by_id[one.id] for one in documents if one.id in self.by_id]
            self.files.write(documents)
            self.refresh()
            for one in documents:
                self.files.remove_older(one.id)
        # Somebody who removed a document with the same text may not have seen these.
        self.restore({one.key for one in documents})
        self._forget(before)

    def remove(self, document: str) -> NamedDocument | None:
        """What it was; None: nobody could read it. A :class:`KeyError` if there is none."""
        with self._lock:
            self.refresh()
            gone = self.by_id.get(document)
            if document not in self.files:
                raise KeyError(document)
            self.files.remove(document)
            self.refresh()
        if gone is not None:
            self._forget([gone])
        return gone

    def restore(self, keys: Iterable[str] | None = None) -> None:
        """Compute again what the store has lost, of these keys or of all."""
        wanted = None if keys is None else set(keys)
        self.store.catalog.refresh()
        for document in list(self.by_id.values()):
            if (wanted is None or document.key in wanted) and not self.is_whole(document.key):
                made, _ = self.compute(document.text)
                if made.key != document.key:  # texts were cut in another way
                    self.refresh()
                    if self.by_id.get(document.id) == document:
                        self.keep([replace(document, key=made.key, units=made.units, tokens=made.tokens)])

    def is_whole(self, key: str) -> bool:
        """Whether the store has all units of a document."""
        try:
            self.store.units_of([key])
        except InputError:
            return False
        return True

    def _forget(self, gone: Iterable[NamedDocument]) -> None:
        """Remove units that no document has any more; of one that somebody adds meanwhile they are computed again."""
        keys = {one.key for one in gone} - {one.key for one in self.by_id.values()}
        if not keys:
            return
        try:
            self.store.catalog.refresh()
            self.store.remove([key for key in keys if key in self.store])
        except (OSError, InputError, CheckpointError) as error:
            # A full disk, or others at the same work; the units are no document's any more, and prune() removes them.
            log.warning("units of a removed document may still be in the store: %s", error)
        self.refresh()
        self.restore(keys)
