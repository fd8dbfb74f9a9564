"""The documents of a service: those of the store that have ids, and what is refused of them.

All computing is done by the engine's thread; others refresh, and read a mapping that is replaced, never changed.
"""

from __future__ import annotations

from typing import Any

from contentrope.errors import CheckpointError, InputError
from contentrope.serving.refusals import Refused, unknown_document
from contentrope.serving.requests import Selection
from contentrope.store import NamedDocument, NamedDocuments, SetCache, UnitStore
from contentrope.store.document_files import ClaimedError


class Documents(NamedDocuments):
    """``most``: how many there may be. Services that add at the same time may go beyond it by what they add then."""

    def __init__(self, store: UnitStore, most: int) -> None:
        super().__init__(store)
        self.most = most
        self.restore()

    def get(self, document: str) -> NamedDocument:
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

    def units_of(self, document: NamedDocument) -> list[dict[str, Any]]:
        """Keys and texts of its memory units, in the order of its text."""
        pieces = self.store.read(list(dict.fromkeys(document.units)))
        ids = [pieces[unit].ids.tolist() for unit in document.units]
        return [
            {"key": unit, "text": self.store.tokenizer.decode(tokens), "tokens": len(tokens)}
            for unit, tokens in zip(document.units, ids, strict=True)
        ]

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

    def begin(self, documents: list[NamedDocument], *, chosen: bool) -> None:
        """Keep documents that are new. ``chosen``: their ids are a client's, so another may choose them too."""
        if not chosen:
            self.require_room(len(documents))
            self.keep(documents)
            return
        try:
            with self.files.claimed([one.id for one in documents]):
                self.refresh()
                self.require_room(len(documents))
                for one in documents:
                    self.require_new(one.id)
                self.keep(documents)
        except ClaimedError as error:
            raise Refused(409, str(error), code="document_exists", param="id") from None

    def remove(self, document: str) -> NamedDocument | None:
        try:
            return super().remove(document)
        except KeyError:
            raise unknown_document(document) from None
