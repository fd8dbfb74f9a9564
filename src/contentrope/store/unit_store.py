"""The store itself: documents in, sets of them out as KV caches."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from contentrope.errors import CheckpointError, InputError
from contentrope.hf.adapter import adapter_of
from contentrope.results import json_bytes
from contentrope.store.ask import Asked, check_embedded, ids_of, inputs_of
from contentrope.store.cache import SetCache
from contentrope.store.catalog import GROUP_BYTES, Catalog, keys_of
from contentrope.store.fingerprint import Watch, differences_of, digest_of, document_key, fingerprint_of, unit_key
from contentrope.store.groups import Piece
from contentrope.store.places import Place, place_of
from contentrope.store.precision import MODEL, PRECISIONS
from contentrope.store.units import Layout, compute
from contentrope.units.cutting import CUTS, Ids, cut

SETTINGS = "store.json"
Progress = Callable[[int, int], object]
Keys = list[str]


class Document(NamedTuple):
    """What the store has of a document."""

    key: str
    units: int
    tokens: int
    bytes: int
    last_used: float | None
    """Seconds since 1970; None: nobody has, as far as was written down."""
    precision: str


Documents = list[Document]


class UnitStore:
    """Documents as memory units, whose keys and values are computed once and read in any company.

    ``address``: a folder, or any fsspec address ("s3://bucket/store"). ``model``: one that ``contentrope.hf.attach``
    was called on. ``tokenizer``: None if documents and questions come as token ids. ``cut``: how documents become
    units; see :func:`contentrope.units.cutting.cut`. ``precision``: "model" stores keys and values as the model
    computes them, "int8" in 8 bits, which takes a half to a quarter of the bytes and changes logits a little.

    >>> import tempfile, torch, transformers
    >>> import contentrope.hf as chf
    >>> sizes = dict(vocab_size=9, hidden_size=16, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    >>> model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = UnitStore(folder, chf.attach(model, units={0}))
    ...     one, other = store.add([[5, 6, 0], [7, 8, 8, 0]])
    ...     caches = store.cache([one, other]), store.cache([other, one])
    >>> question = torch.tensor([[3, 4]])
    >>> torch.equal(*(model(question, past_key_values=cache).logits for cache in caches))
    True
    """

    def __init__(
        self,
        address: str | Path,
        model: nn.Module,
        tokenizer: Any = None,
        *,
        cut: str = "long",
        precision: str = MODEL,
    ) -> None:
        for name, given, choices in (("cut", cut, CUTS), ("precision", precision, tuple(PRECISIONS))):
            if given not in choices:
                raise InputError(f"{name} is {given!r}: choose {', '.join(map(repr, choices))}")
        self.model, self.tokenizer, self.cut, self.precision = model, tokenizer, cut, precision
        self.adapter = adapter_of(model)
        if self.adapter.gate:
            raise InputError(
                "with global positions a unit's keys depend on what stands before it, so they cannot be stored; call "
                "contentrope.hf.set_positions(model, 'local'), or attach with a window"
            )
        self.place = place_of(address)
        self.settings = _agreed(self.place, fingerprint_of(self.adapter, precision))
        self.fingerprint = digest_of(self.settings)
        self.watch, self.layout = Watch(self.adapter), Layout(self.adapter, PRECISIONS[precision])
        self.catalog = Catalog(self.place)
        weakref.finalize(self, Catalog.write_uses, self.catalog)

    def __deepcopy__(self, memo: Any) -> UnitStore:
        return self  # a copied cache reads from the same store

    # --- documents ---

    def add(self, documents: Iterable[Asked], progress: Progress | None = None) -> list[str]:
        """Their keys, in order. Units that are stored already are not computed again.

        ``progress`` is called with the tokens computed so far, and those to compute in all. Documents are stored as
        the work goes on: after an interruption the same call computes the rest.
        """
        if isinstance(documents, str):
            raise InputError("documents is one text: pass a list of them")
        self.watch.refuse_if_changed()
        _agreed(self.place, self.settings)  # the folder may have been removed meanwhile, and another store be there
        self.catalog.refresh()
        config = self.model.config
        cuts: list[dict[str, Ids]] = []
        orders: list[list[str]] = []
        for document in documents:
            ids = ids_of(document, self.tokenizer, "document")
            check_embedded(ids, config)
            units = [
                (unit_key(self.fingerprint, unit), unit) for unit in cut(tuple(ids), self.adapter.segmenter, self.cut)
            ]
            cuts.append(dict(units))
            orders.append([key for key, _ in units])
        known = self.catalog.contents.units
        missing = {key: unit for units in cuts for key, unit in units.items() if key not in known}
        self._compute(missing, {document_key(units): units for units in orders}, progress)
        keys = [document_key(units) for units in orders]
        self.catalog.note_use(keys)
        return keys

    def _compute(self, missing: dict[str, Ids], documents: dict[str, list[str]], progress: Progress | None) -> None:
        keys, total, done = list(missing), sum(map(len, missing.values())), 0
        group: dict[str, Piece] = {}
        size = 0
        for number, piece in compute(self.adapter, self.layout, list(missing.values())):
            group[keys[number]] = piece
            size += piece.bytes
            done += len(piece.ids)
            if size >= GROUP_BYTES:
                self.catalog.add(group, self._finished(documents, group))
                group, size = {}, 0
            if progress is not None:
                progress(done, total)
        before = set(self.catalog.groups)
        self.catalog.add(group, self._finished(documents, group))
        if missing or before != set(self.catalog.groups):
            self.catalog.write_index()

    def _finished(self, documents: dict[str, list[str]], group: dict[str, Piece]) -> dict[str, list[str]]:
        """Documents all of whose units are there with this group."""
        there = self.catalog.contents.units
        return {key: units for key, units in documents.items() if all(x in there or x in group for x in units)}

    def remove(self, keys: Iterable[str]) -> None:
        """Documents, with the units that no other document has."""
        gone = set(self.units_of(keys))
        self.catalog.keep(lambda key: key not in gone)

    # --- reading ---

    def cache(self, keys: Iterable[str]) -> SetCache:
        """A set of documents as a KV cache, in one order however they are given; a document named twice is there once.
        What the model reads with it, reads them."""
        return self.caches([keys])

    def caches(self, sets: Sequence[Iterable[str]]) -> SetCache:
        """One cache with a row for each set; shorter sets are padded on the left."""
        if not sets:
            raise InputError("there are no sets: pass at least one, which may be empty")
        self.watch.refuse_if_changed()
        rows = [keys_of(keys) for keys in sets]
        made = SetCache(self, rows)
        self.catalog.note_use(key for row in rows for key in row)
        return made

    def ask(self, question: Asked | Sequence[Asked], keys: Any) -> dict[str, Any]:
        """Arguments of ``model.generate`` or ``model``: a question behind a set of documents. The ids are those of
        both, as ``generate`` wants them, and returns them: the answer begins behind.

        ``keys`` are documents, a cache of this store, or with several questions a list of sets, one for each. The
        question may be text, token ids, or a list of such, which all ask the same set if there is only one.
        """
        many = isinstance(question, list) and bool(question) and not isinstance(question[0], int)
        questions: list[Any] = list(question) if many else [question]
        asked = [ids_of(one, self.tokenizer, "question") for one in questions]
        for ids in asked:
            check_embedded(ids, self.model.config)
        if isinstance(keys, SetCache):
            cache = keys
        else:
            keys = keys_of(keys) if isinstance(keys, str) else list(keys)
            cache = self.caches(keys) if keys and not isinstance(keys[0], str) else self.cache(keys)
        padding = getattr(self.tokenizer, "pad_token_id", None)
        return inputs_of(asked, cache, 0 if padding is None else padding)

    def units_of(self, documents: Iterable[str]) -> dict[str, list[str]]:
        """The keys of the memory units of each document, in the order of its text."""
        return self.catalog.units_of(keys_of(documents))

    def read(self, units: Sequence[str]) -> dict[str, Piece]:
        """Token ids, keys and values of units, as they are stored."""
        return self.catalog.read(units)

    def tokens_of(self, units: Iterable[str]) -> dict[str, int]:
        return {key: unit.tokens for key, unit in self.catalog.units(list(units)).items()}

    def read_by(self, size: int, units: Iterable[str]) -> Iterator[dict[str, Piece]]:
        """Units in their order, as many at a time as have at most ``size`` bytes, and at least one."""
        chunk, left = list[str](), size
        for key, unit in self.catalog.units(list(units)).items():
            if chunk and unit.bytes > left:
                yield self.read(chunk)
                chunk, left = [], size
            chunk.append(key)
            left -= unit.bytes
        if chunk:
            yield self.read(chunk)

    def ids(self, key: str) -> list[int]:
        """The token ids of a document."""
        units = self.units_of([key])[key]
        pieces = self.read(list(dict.fromkeys(units)))
        return [number for unit in units for number in pieces[unit].ids.tolist()]

    def text(self, key: str) -> str:
        """The text of a document, as its tokens give it back."""
        if self.tokenizer is None:
            raise InputError("the store was opened without a tokenizer: pass one, or call ids(key)")
        return str(self.tokenizer.decode(self.ids(key)))

    # --- upkeep ---

    def __contains__(self, key: str) -> bool:
        return key in self.catalog.contents.documents

    def __len__(self) -> int:
        return len(self.catalog.contents.documents)

    def stats(self) -> dict[str, Any]:
        """Documents, units, tokens and bytes; "damaged" are files that cannot be read."""
        self.catalog.refresh()
        units = self.catalog.contents.units.values()
        return {
            "documents": len(self),
            "units": len(units),
            "tokens": sum(unit.tokens for _, unit in units),
            "bytes": self.catalog.bytes,
            "files": len(self.catalog.groups),
            "damaged": len(self.catalog.damaged),
            "precision": self.precision,
        }

    def verify(self, *, remove: bool = False) -> dict[str, str]:
        """Read everything: what is damaged, units by key and files by name, each with what is wrong. ``remove``: that
        and the documents that are not whole without it, which can be added again."""
        units = self.catalog.damaged_units()
        found = {key: f"another checksum than when it was written, in {name}" for key, name in units.items()}
        found |= self.catalog.damaged
        if remove and found:
            self.catalog.remove_damaged()
            self.catalog.keep(lambda key: True, broken=units)
        return found

    def prune(self, max_bytes: int) -> Keys:
        """Remove the documents that were not used for longest, until the files have at most so many bytes; their
        keys."""
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 0:
            raise InputError(f"max_bytes is {max_bytes!r}: pass a number of bytes, 0 or more")
        self.place.clean()
        self.catalog.refresh()
        uses, removed = self.catalog.last_uses(), set[str]()
        left = sorted(self.catalog.contents.documents, key=lambda key: uses.get(key, 0.0))
        while self.catalog.bytes > max_bytes and left:
            excess, gone = self.catalog.bytes - max_bytes, set[str]()
            while excess > 0 and left:
                excess -= self._bytes_of(left[0])
                gone.add(left.pop(0))
            self.catalog.keep(lambda key, gone=gone: key not in gone)  # type: ignore[misc]
            removed |= gone
        if not left and self.catalog.bytes > max_bytes:
            self.catalog.keep(lambda key: False)
        return sorted(removed)

    def _bytes_of(self, document: str) -> int:
        units = self.catalog.contents.units
        return sum(units[unit][1].bytes for unit in set(self.catalog.contents.documents[document]) if unit in units)

    def list(self) -> Documents:
        """All documents, by key."""
        self.catalog.refresh()
        units, documents = self.catalog.contents
        uses, found = self.catalog.last_uses(), []
        for key, order in sorted(documents.items()):
            own = [units[unit][1] for unit in order if unit in units]
            size = sum(unit.bytes for unit in own)
            found.append(Document(key, len(order), sum(x.tokens for x in own), size, uses.get(key), self.precision))
        return found


def _agreed(place: Place, ours: dict[str, Any]) -> dict[str, Any]:
    """The fingerprint of the store, which is ours if it is new; refused if it is another model's."""
    for _ in range(2):  # of two processes that begin a store one is told what the other wrote
        if (data := place.read(SETTINGS)) is not None:
            break
        place.write(SETTINGS, json_bytes(ours, SETTINGS))
    try:
        stored = json.loads(data or b"")
        found = differences_of(ours, stored)
    except (ValueError, RecursionError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{place}/{SETTINGS} is damaged ({error}); restore it, or begin a new store") from error
    if found and (precision := stored.get("precision", MODEL)) != ours.get("precision", MODEL):
        raise CheckpointError(
            f"the store in {place} has another precision: pass precision={precision!r}, or begin another store"
        )
    if found:
        raise CheckpointError(
            f"the store in {place} is of another model: {'; '.join(found[:4])}; open it with its own, or begin another"
        )
    return dict(stored)
