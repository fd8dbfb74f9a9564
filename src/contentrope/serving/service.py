"""A service: its engine and all that its HTTP side needs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from contentrope.errors import InputError
from contentrope.serving.documents import Documents
from contentrope.serving.engine import READY, Engine, Loaded
from contentrope.serving.limits import Limits
from contentrope.serving.metrics import Metrics
from contentrope.serving.order import Compared, Shuffling
from contentrope.serving.prompts import Prompts
from contentrope.serving.refusals import late, unavailable, unreachable
from contentrope.serving.schemas import ChangedDocument, NewDocuments, OrderRequest
from contentrope.store.document_files import NamedDocument
from contentrope.store.named import Work

log = logging.getLogger("contentrope.serving")

KEY_IN = "CONTENTROPE_API_KEY"
"""The environment variable that may hold the key of the service."""
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is served, and to whom."""

    model: str
    """Folder of a converted model."""
    store: str
    """Folder of a store, or any fsspec address."""
    name: str
    """What clients call the model."""
    key: str | None = field(default=None, repr=False)
    """Which clients must send; None: none."""
    hosts: tuple[str, ...] | None = None
    """Names by which clients may call the service; None: any."""
    precision: str = "model"
    """Of the store."""
    device: str = "cpu"
    template: str | None = None
    """A chat template instead of the tokenizer's own."""


class Service:
    def __init__(self, settings: Settings, limits: Limits, load: Callable[[], tuple[Any, Any]] | None = None) -> None:
        """``load`` returns model and tokenizer; those in the folder unless told otherwise."""
        self.settings, self.limits = settings, limits
        self._load_model = load or self._from_folder
        self.engine = Engine(self._load, limits)
        self.metrics = Metrics(self.engine)
        self.prompts: Prompts | None = None
        self._looking = asyncio.Lock()
        self._begun = self._seen = 0
        """Listings of the documents: how many have begun, and which was the last that succeeded."""
        self.created = int(time.time())

    # --- in the engine's thread ---

    def _from_folder(self) -> tuple[Any, Any]:
        from contentrope.hf.loading import load_any

        require_converted(self.settings.model)
        return load_any(self.settings.model, device=self.settings.device)

    def _load(self) -> Loaded:
        from contentrope.store import UnitStore

        model, tokenizer = self._load_model()
        self.prompts = Prompts(tokenizer, model.config.get_text_config().vocab_size, self.settings.template)
        store = UnitStore(self.settings.store, model, tokenizer, precision=self.settings.precision)
        documents = Documents(store, self.limits.documents)
        self._count(documents)
        return Loaded(model, tokenizer, documents)

    def _count(self, documents: Documents) -> None:
        self.metrics.documents.set(len(documents.by_id))
        self.metrics.store_bytes.set(documents.store.stats()["bytes"])

    # --- in the event loop ---

    @property
    def documents(self) -> Documents:
        """To look at."""
        loaded = self.engine.loaded
        if loaded is None or self.engine.state != READY:
            raise unavailable(self.engine.state)
        return loaded.documents

    async def _done(self, function: Callable[[], Result]) -> Result:
        """By the engine's thread, in time."""
        future = self.engine.call(function)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self.limits.timeout)
        except (TimeoutError, CancelledError):
            raise late(self.limits.timeout) from None

    async def refreshed(self) -> Documents:
        """To look at, with all that others had changed when this was called: one listing of the store's documents,
        which requests that come meanwhile share."""
        documents, before = self.documents, self._begun
        async with self._looking:
            if self._seen <= before:
                self._begun = number = self._begun + 1
                try:
                    await asyncio.to_thread(documents.refresh)
                except OSError as error:
                    log.error("the store cannot be listed", exc_info=error)
                    raise unreachable() from None
                self._seen = number
                self.metrics.documents.set(len(documents.by_id))
                self.metrics.damaged.set(len(documents.files.damaged))
        return documents

    async def add(self, asked: NewDocuments) -> list[tuple[NamedDocument, Work]]:
        """All of them are computed, one after the other; then all are kept."""
        documents = await self.refreshed()
        documents.require_room(len(asked.texts))
        if asked.id is not None:
            documents.require_new(asked.id)
        found = []
        for text in asked.texts:
            made, work = await self._done(lambda text=text: documents.compute(text))  # type: ignore[misc]
            made = replace(made, id=asked.id or made.id, name=asked.name, metadata=asked.metadata or {})
            found.append((made, work))

        def keep() -> None:
            documents.begin([made for made, _ in found], chosen=asked.id is not None)
            self._count(documents)

        await self._done(keep)
        return found

    async def change(self, document: str, asked: ChangedDocument) -> tuple[NamedDocument, Work]:
        documents = await self.refreshed()

        def change() -> tuple[NamedDocument, Work]:
            documents.get(document)
            made, work = documents.compute(asked.text)
            documents.refresh()  # it may have taken long
            before = documents.get(document)
            name = before.name if asked.name is None else asked.name
            metadata = before.metadata if asked.metadata is None else asked.metadata
            made = replace(made, id=before.id, created=before.created, name=name, metadata=metadata)
            documents.keep([made])
            self._gone(before, documents)
            return made, work

        return await self._done(change)

    async def remove(self, document: str) -> None:
        documents = self.documents

        def remove() -> None:
            self._gone(documents.remove(document), documents)

        await self._done(remove)

    async def units_of(self, document: str) -> list[dict[str, Any]]:
        """Keys and texts of its memory units, in the order of its text."""
        documents = await self.refreshed()
        one = documents.get(document)
        if len(one.units) == 1:
            return [{"key": one.units[0], "text": one.text, "tokens": one.tokens}]
        return await self._done(lambda: documents.units_of(one))

    async def order(self, asked: OrderRequest) -> Compared:
        documents, engine = await self.refreshed(), self.engine
        documents.keys_of(asked.documents)
        assert self.prompts is not None  # it is loaded with the documents
        prompt = await asyncio.to_thread(self.prompts.ids, asked.messages)

        def compare() -> Compared:
            keys = documents.keys_of(asked.documents)
            return Shuffling(engine.speaker, documents, prompt, asked.seed).compare(keys, engine.prefixes)

        return await self._done(compare)

    def _gone(self, document: NamedDocument | None, documents: Documents) -> None:
        if document is not None and document.key not in documents.store:
            self.engine.prefixes.forget(document.key)
        self._count(documents)


def require_converted(folder: str) -> None:
    from contentrope.hf.layout import is_converted

    if not is_converted(folder):
        raise InputError(
            f"{folder} holds no model with addresses, whose documents could be stored; convert it first: contentrope "
            "finetune"
        )


def checked_key(text: str, place: str) -> str:
    """An API key, which HTTP must be able to carry; ``place`` is where it stands, for it is never shown.

    >>> checked_key("a-key\\n", "the file")
    'a-key'
    """
    found = text.strip()
    if not (found.isascii() and found.isprintable() and len(found.split()) == 1):
        raise InputError(f"{place} must hold an API key: one word of letters, digits and signs in ASCII")
    return found
