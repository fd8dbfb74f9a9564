"""The documents of a service by their clients' ids; their keys and values are in the store.

Each is a file of its own in the store's folder ``documents``, written whole or not at all, so they are there again
after a crash. All changes come from the engine's thread; others read a mapping that is replaced, never changed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from contentrope.errors import CheckpointError, InputError
from contentrope.serving.refusals import Refused, unknown_document
from contentrope.serving.requests import Selection
from contentrope.store import SetCache, UnitStore

FOLDER = "documents"
log = logging.getLogger("contentrope.serving")


@dataclass(frozen=True, kw_only=True)
class Document:
    id: str
    text: str
    key: str
    """In the store."""
    units: list[str]
    """Keys of its memory units, in the order of its text."""
    tokens: int
    name: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    created: float = field(default_factory=time.time)

    def described(self, *, text: bool = False) -> dict[str, Any]:
        """As clients see it."""
        about = {"object": "document", "characters": len(self.text), **asdict(self), "created": int(self.created)}
        return about if text else {name: value for name, value in about.items() if name != "text"}


class Work(NamedTuple):
    """What was computed for a text, and how long it took."""

    units: int
    tokens: int
    seconds: float
    others: int
    """Units that were stored before."""
    changed: int
    """How many of those have another checksum than before."""


class Documents:
    """``most``: how many there may be."""

    def __init__(self, store: UnitStore, most: int) -> None:
        self.store, self.most = store, most
        self.meanwhile: Callable[[], None] = lambda: None
        """Called between the units of a text that is computed: others need not wait for all of a long one."""
        self.by_id: Mapping[str, Document] = MappingProxyType({})
        self._load()

    # --- what is there ---

    def get(self, document: str) -> Document:
        try:
            return self.by_id[document]
        except KeyError:
            raise unknown_document(document) from None

    def keys_of(self, selection: Selection) -> tuple[str, ...]:
        """In the store, in one order; documents with the same text are one."""
        chosen = self.by_id.values() if selection == "all" else map(self.get, selection)
        return tuple(sorted({document.key for document in chosen}))

    def cache(self, keys: tuple[str, ...]) -> SetCache:
        """The KV cache of a set. Damage to the store is mended from the texts."""
        try:
            return self.store.cache(keys)
        except CheckpointError:
            self.store.verify(remove=True)
        except InputError:  # another process has removed some
            pass
        self.restore(keys)
        return self.store.cache(keys)

    def require_room(self, count: int) -> None:
        if len(self.by_id) + count > self.most:
            raise Refused(
                400,
                f"there are {len(self.by_id)} documents and at most {self.most} are kept; remove some first",
                code="too_many_documents",
            )

    def require_new(self, document: str) -> None:
        if document in self.by_id:
            raise Refused(
                409,
                f"there is a document {document!r}; send PUT /v1/documents/{document} to replace it",
                code="document_exists",
                param="id",
            )

    # --- changes ---

    def compute(self, text: str) -> tuple[Document, Work]:
        """A document, not yet among the others: the store computes the units of this text that it has not."""
        computed: list[int] = []

        def note(tokens: int, total: int) -> None:
            computed.append(tokens)
            self.meanwhile()

        before, began = self._checksums(), time.monotonic()
        (key,) = self.store.add([text], progress=note)
        made = Document(
            id=f"doc-{uuid.uuid4().hex[:24]}",
            text=text,
            key=key,
            units=self.store.units_of([key])[key],
            tokens=len(self.store.ids(key)),
        )
        seconds = round(time.monotonic() - began, 6)
        after = self._checksums()
        changed = sum(after.get(unit, checksum) != checksum for unit, checksum in before.items())
        return made, Work(len(computed), computed[-1] if computed else 0, seconds, len(before), changed)

    def units_of(self, document: Document) -> list[dict[str, Any]]:
        """Keys and texts of its memory units, in the order of its text."""
        pieces = self.store.read(list(dict.fromkeys(document.units)))
        ids = [pieces[unit].ids.tolist() for unit in document.units]
        return [
            {"key": unit, "text": self.store.tokenizer.decode(tokens), "tokens": len(tokens)}
            for unit, tokens in zip(document.units, ids, strict=True)
        ]

    def _checksums(self) -> dict[str, str]:
        """Of all stored units."""
        return {key: unit.digest for key, (_, unit) in self.store.catalog.contents.units.items()}

    def put(self, document: Document) -> None:
        """Keep a document, in the place of one with the same id; units that no document has any more are removed."""
        before = self.by_id.get(document.id)
        self.store.place.write(_file_of(document.id), json.dumps(asdict(document)).encode())
        self.by_id = MappingProxyType({**self.by_id, document.id: document})
        self._forget(before)

    def remove(self, document: str) -> None:
        gone = self.get(document)
        self.store.place.remove(_file_of(document))
        self.by_id = MappingProxyType({name: one for name, one in self.by_id.items() if name != document})
        self._forget(gone)

    def restore(self, keys: Iterable[str] | None = None) -> None:
        """Compute again what the store has lost, of these keys or of all."""
        wanted = None if keys is None else set(keys)
        for document in self.by_id.values():
            if (wanted is None or document.key in wanted) and document.key not in self.store:
                made, _ = self.compute(document.text)
                self.put(replace(document, key=made.key, units=made.units, tokens=made.tokens))

    def _forget(self, document: Document | None) -> None:
        if document is None or any(other.key == document.key for other in self.by_id.values()):
            return
        if document.key in self.store:
            try:
                self.store.remove([document.key])
            except OSError as error:  # a full disk; the units are no document's any more, and prune() removes them
                log.warning("units of a removed document are still in the store: %s", error)

    def _load(self) -> None:
        found = {}
        for name in self.store.place.sizes(FOLDER):
            data = self.store.place.read(f"{FOLDER}/{name}")
            try:
                document = Document(**json.loads(data or b""))
            except (ValueError, TypeError, RecursionError) as error:
                raise CheckpointError(
                    f"{self.store.place}/{FOLDER}/{name} is damaged ({error}); restore it from a copy, or delete it "
                    "and add the document again"
                ) from error
            found[document.id] = document
        self.by_id = MappingProxyType(dict(sorted(found.items(), key=lambda item: (item[1].created, item[0]))))
        self.restore()


def _file_of(document: str) -> str:
    """Ids may differ in ways that some file systems do not see."""
    return f"{FOLDER}/{hashlib.sha256(document.encode()).hexdigest()[:32]}.json"
