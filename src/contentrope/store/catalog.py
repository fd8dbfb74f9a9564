"""What is in a store: which group holds which unit, which units a document has, and when each was last used.

The groups are the truth. The index is a copy of their headers, so that a store opens by reading one file; one that is
missing, damaged or behind is made again from the groups that are there. So processes that write at the same time need
no lock, and a crash leaves nothing half.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from contentrope.errors import CheckpointError, InputError, quoted
from contentrope.store.groups import FOLDER, Group, Piece, Unit, read_header, read_pieces, write_group
from contentrope.store.places import Place

INDEX, USED = "index.json", "used"
GROUP_BYTES = 64 * 2**20
"""A group is written when it has so many."""
TRIES = 3
NOTE_EVERY = 60.0
"""Seconds: when documents were used is written down so often."""


def keys_of(given: Iterable[str]) -> list[str]:
    """A list of keys."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InputError(f"keys is {quoted(given)}: pass a list of keys")
    keys = list(given)
    for key in keys:
        if not isinstance(key, str):
            raise InputError(f"one of the keys is {quoted(key)}: pass a list of keys, which are text")
    return keys


class Contents(NamedTuple):
    """Of all groups together."""

    units: dict[str, tuple[str, Unit]]
    """By key, the group it lies in and where."""
    documents: dict[str, list[str]]


class Catalog:
    def __init__(self, place: Place) -> None:
        self.place = place
        self.groups: dict[str, Group] = {}
        self.damaged: dict[str, str] = {}
        """Groups whose header cannot be read, and why."""
        self.contents = Contents({}, {})
        self._checked: set[str] = set()
        """Units whose checksum was found right by this process."""
        self._lock = threading.RLock()
        self._used: dict[str, float] = {}
        self._noted, self._note_name = 0.0, f"{USED}/{uuid.uuid4().hex}.json"
        self._read_index()
        self.refresh()

    # --- what is there ---

    def refresh(self) -> None:
        """Look for what other processes have written and removed."""
        with self._lock:
            sizes = {name: size for name, size in self.place.sizes(FOLDER).items() if name.endswith(".safetensors")}
            kept = {name: group for name, group in self.groups.items() if sizes.get(name) == group.size}
            new, self.damaged = {}, {}
            for name in sorted(sizes.keys() - kept.keys()):
                try:
                    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                        new[name] = read_header(self.place, name, sizes[name])
                except CheckpointError as error:
                    self.damaged[name] = str(error)
            for name in self.groups.keys() - kept.keys():
                self.place.forget(f"{FOLDER}/{name}")
            if new or len(kept) < len(self.groups):
                self.groups = {**kept, **new}
                self._gather()

    def _gather(self) -> None:
        units: dict[str, tuple[str, Unit]] = {}
        documents: dict[str, list[str]] = {}
        for name, group in sorted(self.groups.items()):
            for key, unit in group.units.items():
                units.setdefault(key, (name, unit))
            documents.update(group.documents)
        self.contents = Contents(units, documents)

    def units_of(self, documents: Iterable[str]) -> dict[str, list[str]]:
        """The units of each of these documents, all of them there."""
        documents = list(documents)
        if not all(self._is_whole(key) for key in documents):
            self.refresh()
        for key in documents:
            if key not in self.contents.documents:
                raise InputError(f"{quoted(key)} is no document of the store in {self.place}{self._hint()}; add it")
            if not self._is_whole(key):
                raise InputError(f"units of the document {key} were removed from {self.place}{self._hint()}; add it")
        return {key: self.contents.documents[key] for key in documents}

    def _is_whole(self, document: str) -> bool:
        units = self.contents.documents.get(document)
        return units is not None and all(unit in self.contents.units for unit in units)

    def _hint(self) -> str:
        return f" ({len(self.damaged)} files are damaged, see verify())" if self.damaged else ""

    # --- reading ---

    def units(self, keys: Collection[str]) -> dict[str, Unit]:
        """What is known of these, all of them there."""
        for key in keys:
            if key not in self.contents.units:
                self.refresh()
                break
        units = self.contents.units
        for key in keys:
            if key not in units:
                raise InputError(f"unit {key} was removed from {self.place}; add its document again")
        return {key: units[key][1] for key in keys}

    def read(self, keys: Collection[str]) -> dict[str, Piece]:
        """Units by key. Each one's checksum is looked at when this process reads it for the first time."""
        try:
            found = self._read(keys)
        except (FileNotFoundError, KeyError):  # another process has put it elsewhere, or removed it
            self.refresh()
            self.units(keys)
            found = self._read(keys)
        fresh = {key: piece for key, piece in found.items() if key not in self._checked}
        if wrong := self._wrong(fresh):  # another process may have written the file anew, under the same name
            for key in wrong:
                self.place.forget(f"{FOLDER}/{self.contents.units[key][0]}")
            found |= self._read(wrong)
            wrong = self._wrong({key: found[key] for key in wrong})
        if wrong:
            name, _ = self.contents.units[wrong[0]]
            raise CheckpointError(
                f"{self.place}/{FOLDER}/{name} is damaged (unit {wrong[0]} has another checksum); verify(remove=True) "
                "removes it, then add its documents again"
            )
        self._checked.update(fresh)
        return found

    def _read(self, keys: Collection[str]) -> dict[str, Piece]:
        units = self.contents.units
        return read_pieces(self.place, {key: units[key] for key in keys})

    def _wrong(self, pieces: Mapping[str, Piece]) -> list[str]:
        """Units with another checksum than when they were written."""
        units = self.contents.units
        if not pieces:
            return []
        with ThreadPoolExecutor() as pool:
            digests = pool.map(Piece.digest, pieces.values())
            return [key for key, digest in zip(pieces, digests, strict=True) if digest != units[key][1].digest]

    def damaged_units(self) -> dict[str, str]:
        """All is read: units with another checksum, and the group they lie in. Groups whose header cannot be read are
        among the damaged from then on."""
        with self._lock:
            for name in self.groups:
                self.place.forget(f"{FOLDER}/{name}")  # as it lies there now
            self.groups = {}  # the index would hide what became of the headers
            self.refresh()
            self._gather()
        found = {}
        for name, group in self.groups.items():
            try:
                pieces = read_pieces(self.place, {key: (name, unit) for key, unit in group.units.items()})
            except (CheckpointError, RuntimeError):
                found.update(dict.fromkeys(group.units, name))
                continue
            with ThreadPoolExecutor() as pool:
                digests = pool.map(Piece.digest, pieces.values())
                wrong = (key for key, digest in zip(pieces, digests, strict=True) if digest != group.units[key].digest)
                found.update(dict.fromkeys(wrong, name))
        return found

    # --- writing ---

    def add(self, pieces: Mapping[str, Piece], documents: Mapping[str, list[str]]) -> None:
        """Write a group. Units and documents that are there already are left out."""
        with self._lock:
            pieces = {key: piece for key, piece in pieces.items() if key not in self.contents.units}
            documents = {key: units for key, units in documents.items() if key not in self.contents.documents}
            if pieces or documents:
                self._write(pieces, documents)

    def _write(self, pieces: Mapping[str, Piece], documents: Mapping[str, list[str]]) -> None:
        name = write_group(self.place, pieces, documents)
        if name in self.damaged:
            write_group(self.place, pieces, documents, over=True)
        self.groups[name] = read_header(self.place, name, self.place.sizes(FOLDER)[name])
        self.damaged.pop(name, None)
        self._gather()

    def keep(self, is_kept: Callable[[str], bool], broken: Collection[str] = ()) -> None:
        """Remove the documents that are not kept, units that none of the others has, and ``broken`` units.

        A group that loses some is written anew with the rest, whose bytes stay as they are, and removed after that.
        """
        with self._lock:
            for left in reversed(range(TRIES)):
                self.refresh()  # what others have removed must not come back
                try:
                    self._keep(is_kept, broken)
                    break
                except FileNotFoundError:  # another process does the same, and has been faster
                    if not left:
                        raise
            self.refresh()
            self.write_index()

    def _keep(self, is_kept: Callable[[str], bool], broken: Collection[str]) -> None:
        whole, known = self.contents.units.keys() - set(broken), self.contents.documents.items()
        documents = {key: units for key, units in known if is_kept(key) and whole.issuperset(units)}
        placed, units_there = set(documents), {unit for units in documents.values() for unit in units}
        for name, group in sorted(self.groups.items()):
            units, own = units_there & set(group.units), placed & set(group.documents)
            units_there, placed = units_there - units, placed - own  # of two copies one is kept
            if len(units) == len(group.units) and len(own) == len(group.documents):
                continue
            if units or own:
                pieces = read_pieces(self.place, {key: (name, group.units[key]) for key in sorted(units)})
                # With the checksums they had: what is damaged stays so.
                digests = {key: group.units[key].digest for key in pieces}
                write_group(self.place, pieces, {key: documents[key] for key in sorted(own)}, digests=digests)
            self.place.remove(f"{FOLDER}/{name}")

    def remove_damaged(self) -> None:
        """Files whose header cannot be read."""
        for name in self.damaged:
            self.place.remove(f"{FOLDER}/{name}")
        self.refresh()

    @property
    def bytes(self) -> int:
        """Of all groups."""
        return sum(group.size for group in self.groups.values())

    # --- the index ---

    def write_index(self) -> None:
        text = json.dumps({name: group.described() for name, group in sorted(self.groups.items())})
        digest = hashlib.sha256(text.encode()).hexdigest()
        self.place.write(INDEX, json.dumps({"sha256": digest, "groups": text}).encode())

    def _read_index(self) -> None:
        data = self.place.read(INDEX)
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            found = json.loads(data or b"")
            if hashlib.sha256(found["groups"].encode()).hexdigest() == found["sha256"]:
                self.groups = {name: Group.of(group) for name, group in json.loads(found["groups"]).items()}
                self._gather()

    # --- what was used ---

    def note_use(self, documents: Iterable[str]) -> None:
        now = time.time()
        self._used.update(dict.fromkeys(documents, now))
        if now - self._noted > NOTE_EVERY:
            self.write_uses()

    def write_uses(self) -> bool:
        """In a file of this process's own. A store that cannot be written to is read all the same."""
        self._noted = time.time()
        try:
            if self._used:
                self.place.write(self._note_name, json.dumps(self._used).encode())
        except OSError:
            return False
        return True

    def last_uses(self) -> dict[str, float]:
        """Of all processes; their files become one."""
        names = [f"{USED}/{name}" for name in self.place.sizes(USED)]
        for name in names:
            for key, when in _numbers(self.place.read(name)).items():
                self._used[key] = max(when, self._used.get(key, 0.0))
        if self.write_uses():
            for name in set(names) - {self._note_name}:
                with contextlib.suppress(OSError):
                    self.place.remove(name)
        return dict(self._used)


def _numbers(data: bytes | None) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError, AttributeError):
        return {key: value for key, value in json.loads(data or b"{}").items() if isinstance(value, float)}
    return {}
