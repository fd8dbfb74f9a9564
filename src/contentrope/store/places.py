"""Where the files of a store lie: a folder, whose files are mapped into memory, or any fsspec address."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import UInt8
from torch import Tensor

from contentrope.errors import CheckpointError
from contentrope.files import write_whole, writing

Bytes = UInt8[Tensor, "bytes"]
UNFINISHED = re.compile(r"\.(.+\.(safetensors|json)|[0-9a-f]{32})\.\w+")
"""What a file is called before it is whole."""
LEFT_BEHIND = 3600.0
"""Seconds after which a file that was never finished is taken for what a crash left behind."""


class Part(NamedTuple):
    """Some bytes of a file."""

    name: str
    begin: int
    end: int


class Place(Protocol):
    """Files by name, of which a part before ``/`` is a folder. A file appears whole, and never changes."""

    def sizes(self, folder: str) -> dict[str, int]:
        """The files of a folder, by name."""

    def names(self, folder: str) -> set[str]:
        """The same without their sizes, which may cost a question each."""

    def read(self, name: str) -> bytes | None:
        """None: there is no such file."""

    def parts(self, parts: Iterable[Part]) -> list[Bytes]: ...

    def write(self, name: str, data: bytes) -> None: ...

    def create(self, name: str, data: bytes) -> bool:
        """Write a file if there is none of its name, as far as the file system can tell; False: there is one."""

    def remove(self, name: str) -> None: ...

    def forget(self, name: str) -> None:
        """Read the file anew when it is asked for next."""

    def clean(self) -> None:
        """Remove what crashes have left behind."""


def place_of(address: str | Path) -> Place:
    """
    >>> type(place_of("my-store")).__name__, type(place_of("memory://my-store")).__name__
    ('Folder', 'Remote')
    """
    return Remote(str(address)) if "://" in str(address) else Folder(Path(address))


class Folder:
    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._mapped: dict[str, Bytes] = {}

    def __str__(self) -> str:
        return str(self.root)

    def sizes(self, folder: str) -> dict[str, int]:
        try:
            entries = list(os.scandir(self.root / folder))
        except FileNotFoundError:
            return {}
        found = {}
        for entry in entries:
            if not entry.name.startswith("."):
                with suppress(FileNotFoundError):  # somebody has just removed it
                    found[entry.name] = entry.stat().st_size
        return found

    def names(self, folder: str) -> set[str]:
        try:
            return {name for name in os.listdir(self.root / folder) if not name.startswith(".")}
        except FileNotFoundError:
            return set()

    def read(self, name: str) -> bytes | None:
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            return None

    def parts(self, parts: Iterable[Part]) -> list[Bytes]:
        """Views of the mapped files: bytes are read when they are looked at."""
        return [self._map(name, end)[begin:end] for name, begin, end in parts]

    def write(self, name: str, data: bytes) -> None:
        write_whole(self.root / name, data)
        self._mapped.pop(name, None)

    def create(self, name: str, data: bytes) -> bool:
        path = self.root / name
        with writing(path, len(data)):
            path.parent.mkdir(parents=True, exist_ok=True)
            whole = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
            try:
                whole.write_bytes(data)
                try:
                    os.link(whole, path)
                except FileExistsError:
                    return False
                except OSError:  # a file system without hard links
                    return self._create_here(path, data)
            finally:
                whole.unlink(missing_ok=True)
        return True

    def _create_here(self, path: Path, data: bytes) -> bool:
        try:
            with path.open("xb") as file:
                file.write(data)
        except FileExistsError:
            return False
        return True

    def remove(self, name: str) -> None:
        self._mapped.pop(name, None)
        (self.root / name).unlink(missing_ok=True)

    def forget(self, name: str) -> None:
        self._mapped.pop(name, None)

    def clean(self) -> None:
        for path in self.root.rglob(".*"):
            with suppress(FileNotFoundError):  # somebody else cleans
                is_ours = UNFINISHED.fullmatch(path.name) and path.is_file()
                if is_ours and time.time() - path.stat().st_mtime > LEFT_BEHIND:
                    path.unlink(missing_ok=True)

    def _map(self, name: str, needed: int) -> Bytes:
        if name not in self._mapped:
            path = self.root / name
            size = path.stat().st_size
            # Private to this process: whatever writes to a tensor of it, the file stays as it is.
            self._mapped[name] = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
        if len(self._mapped[name]) < needed:
            raise CheckpointError(f"{self.root / name} is cut short; see verify()")
        return self._mapped[name]


class Remote:
    """An object store writes a file whole or not at all, as its put does."""

    def __init__(self, address: str) -> None:
        core = import_module("fsspec.core")
        found: tuple[Any, str] = core.url_to_fs(address)
        self.files, self.root = found
        self.address = address

    def __str__(self) -> str:
        return self.address

    def sizes(self, folder: str) -> dict[str, int]:
        self.files.invalidate_cache()
        try:
            entries = self.files.ls(self._path(folder), detail=True)
        except FileNotFoundError:
            return {}
        named = ((entry["name"].rsplit("/", 1)[-1], entry) for entry in entries if entry["type"] == "file")
        return {name: entry["size"] for name, entry in named if not name.startswith(".")}

    def names(self, folder: str) -> set[str]:
        return set(self.sizes(folder))

    def read(self, name: str) -> bytes | None:
        try:
            return bytes(self.files.cat_file(self._path(name)))
        except FileNotFoundError:
            return None

    def parts(self, parts: Iterable[Part]) -> list[Bytes]:
        parts = list(parts)
        paths, begins, ends = (list(x) for x in zip(*parts, strict=True)) if parts else ([], [], [])
        found = self.files.cat_ranges([self._path(name) for name in paths], begins, ends, on_error="return")
        for part, data in zip(parts, found, strict=True):
            if isinstance(data, Exception):
                raise data
            if len(data) != part.end - part.begin:
                raise CheckpointError(f"{self.address}/{part.name} is cut short; see verify()")
        return [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in found]

    def write(self, name: str, data: bytes) -> None:
        with writing(Path(self._path(name)), len(data)):
            self.files.makedirs(self._path(name).rsplit("/", 1)[0], exist_ok=True)
            self.files.pipe_file(self._path(name), data)

    def create(self, name: str, data: bytes) -> bool:
        with writing(Path(self._path(name)), len(data)):
            self.files.makedirs(self._path(name).rsplit("/", 1)[0], exist_ok=True)
            try:
                self.files.pipe_file(self._path(name), data, mode="create")
            except FileExistsError:
                return False
        return True

    def remove(self, name: str) -> None:
        try:
            self.files.rm_file(self._path(name))
        except FileNotFoundError:
            return

    def forget(self, name: str) -> None:
        """Nothing is kept."""

    def clean(self) -> None:
        """Nothing: what was not written whole is not there."""

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"
