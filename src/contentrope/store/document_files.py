"""The files of documents that have ids of their own, in a store's folder ``documents``.

Any number of processes read and write them at the same time. A version of a document is a file that is written whole
under a name of its own, never changed, and removed when there is a newer one. So the names alone say whether anything
is new, whatever clocks and times of files say. Of several versions the last one by number is the document's, and of two
that were written at once the one whose name is the later: for every reader the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from contentrope.errors import InputError, quoted
from contentrope.store.places import Place

FOLDER, CLAIMS = "documents", "claims"
AT_ONCE = 16
"""Files that are read or written at once: an object store takes its time for each."""
ATTEMPTS = 10
"""Listings, while others replace files between a listing and its reading."""
STALE = 60.0
"""Seconds after which a claim is taken for what a crash left behind."""
_NAME = re.compile(r"([0-9a-f]{32})(?:\.([0-9]{1,12})-([0-9a-f]{8}))?\.json")


@dataclass(frozen=True, kw_only=True)
class NamedDocument:
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


class Version(NamedTuple):
    """A file, and its place among those of its document; one without a number is from before there were any."""

    number: int
    nonce: str
    file: str


class DocumentFiles:
    def __init__(self, place: Place) -> None:
        self.place = place
        self.damaged: dict[str, str] = {}
        """Files that cannot be read, and why. Where there is an older version, that is read."""
        self._names: set[str] = set()
        """As last listed, if all of them were read then."""
        self._read: dict[str, NamedDocument] = {}
        self._versions: dict[str, list[Version]] = {}
        """By hash of the id, oldest first; as last listed."""

    def look(self) -> list[NamedDocument]:
        """The documents there are now. Only files that are new are read."""
        for _ in range(ATTEMPTS):
            names = self.place.names(FOLDER)
            if names == self._names and not self.damaged:
                return list(self._read.values())
            self._names, self._versions = set(), _sorted(names)
            damaged: dict[str, str] = {}
            shown = self._newest(damaged)
            if shown is not None:
                break
        else:
            raise OSError(f"the documents of {self.place} change faster than they can be read; try again")
        self._names, self.damaged = names, damaged
        self._read = {version.file: self._read[version.file] for version in shown}
        return list(self._read.values())

    def _newest(self, damaged: dict[str, str]) -> list[Version] | None:
        """Of every document the last version that can be read; None: some went away meanwhile."""
        left, shown = {name: list(versions) for name, versions in self._versions.items()}, []
        while left:
            last = {name: versions.pop() for name, versions in left.items()}
            if not self._read_those(last, damaged):
                return None
            shown += [version for version in last.values() if version.file in self._read]
            left = {name: left[name] for name, version in last.items() if version.file not in self._read and left[name]}
        return shown

    def _read_those(self, wanted: dict[str, Version], damaged: dict[str, str]) -> bool:
        new = [(name, version.file) for name, version in wanted.items() if version.file not in self._read]
        if not new:
            return True
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = list(pool.map(lambda one: self.place.read(f"{FOLDER}/{one[1]}"), new))
        for (name, file), data in zip(new, found, strict=True):
            if data is None:
                return False
            try:
                self._read[file] = _parsed(data, name)
            except (ValueError, TypeError, RecursionError) as error:
                damaged[file] = str(error)
        return True

    def __contains__(self, document: str) -> bool:
        """Whether there is a file of it, which may be damaged; as last listed."""
        return hash_of(document) in self._versions

    def write(self, documents: Sequence[NamedDocument]) -> None:
        """Of each a new version, the last of those that are known; all of them, or none."""
        files = {self._next(one.id): json.dumps(asdict(one)).encode() for one in documents}
        try:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                list(pool.map(self.place.write, files, files.values()))
        except BaseException:
            for file in files:
                self.place.remove(file)
            raise

    def _next(self, document: str) -> str:
        name = hash_of(document)
        known = self._versions.get(name, [])
        number = known[-1].number + 1 if known else 1
        return f"{FOLDER}/{name}.{number:08d}-{uuid.uuid4().hex[:8]}.json"

    def remove(self, document: str) -> None:
        """All versions, the oldest first: after a crash in between the document is still what it was."""
        for version in self._versions.get(hash_of(document), []):
            self.place.remove(f"{FOLDER}/{version.file}")

    def remove_older(self, document: str) -> None:
        """All versions but the one that is read; those that cannot be removed now go with the next change."""
        versions = self._versions.get(hash_of(document), [])
        shown = [n for n, version in enumerate(versions) if version.file in self._read]
        for version in versions[: shown[-1]] if shown else ():
            with contextlib.suppress(OSError):
                self.place.remove(f"{FOLDER}/{version.file}")

    @contextlib.contextmanager
    def claimed(self, documents: Iterable[str]) -> Iterator[None]:
        """Whoever wants to begin a document under one of these ids at the same time is refused, where the file system
        can create a file only if it is not there."""
        with contextlib.ExitStack() as leaving:
            for document in documents:
                name = f"{CLAIMS}/{hash_of(document)}"
                if not self._claim(name):
                    raise ClaimedError(f"somebody else is adding a document {quoted(document)}; try again")
                leaving.callback(self.place.remove, name)
            yield

    def _claim(self, name: str) -> bool:
        now = time.time()
        if self.place.create(name, str(now).encode()):
            return True
        data = self.place.read(name)
        with contextlib.suppress(ValueError):
            if data is None or now - float(data) < STALE:
                return False
        self.place.remove(name)
        return self.place.create(name, str(now).encode())


class ClaimedError(InputError):
    """Two want to begin a document under one id."""


def hash_of(document: str) -> str:
    """Ids may differ in ways that some file systems do not see."""
    return hashlib.sha256(document.encode()).hexdigest()[:32]


def _sorted(files: Iterable[str]) -> dict[str, list[Version]]:
    found: dict[str, list[Version]] = {}
    for file in files:
        if match := _NAME.fullmatch(file):
            found.setdefault(match[1], []).append(Version(int(match[2] or 0), match[3] or "", file))
    return {name: sorted(versions) for name, versions in found.items()}


def _parsed(data: bytes, name: str) -> NamedDocument:
    document = NamedDocument(**json.loads(data))
    if not (isinstance(document.text, str) and isinstance(document.key, str) and isinstance(document.units, list)):
        raise TypeError("its text, key or units are none")
    if not isinstance(document.id, str) or hash_of(document.id) != name:
        raise ValueError(f"it is of a document {quoted(document.id)}, whose file has another name")
    return document
