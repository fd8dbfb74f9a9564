"""Text files of folders, as documents: which there are, and under which ids."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from contentrope.errors import InputError

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
LONGEST_ID, LONGEST_NAME = 128, 200


class TextFile(NamedTuple):
    id: str
    name: str
    """Its path below the folder."""
    source: str
    """Its whole path."""
    text: str

    @property
    def digest(self) -> str:
        return digest_of_text(self.text)


class Found(NamedTuple):
    files: list[TextFile]
    skipped: dict[str, str]
    """Paths, and why each is no document."""


def digest_of_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def find_texts(
    places: Iterable[str | Path], *, patterns: Sequence[str] = (), prefix: str = "", without: Iterable[Path] = ()
) -> Found:
    """The text files of folders, and files named one by one; hidden ones are none. ``patterns``: such as ``*.md``.
    ``without``: folders to leave out, as the store's own.

    A file of a folder that holds no text is skipped; one that was named itself is refused.
    """
    found, skipped, origin = list[TextFile](), dict[str, str](), dict[str, str]()
    left_out = {os.path.realpath(path) for path in without}
    for place in map(Path, places):
        if not place.exists():
            raise InputError(f"there is no file or folder {str(place)!r}")
        folder = place if place.is_dir() else place.parent
        for path in _walk(place, left_out) if place.is_dir() else [place]:
            name = path.relative_to(folder).as_posix()
            if place.is_dir() and not _is_wanted(name, patterns):
                continue
            try:
                text = _text_in(path)
            except (OSError, ValueError) as error:
                if not place.is_dir():
                    raise InputError(f"{_shown(path)} is no text: {error}") from None
                skipped[_shown(path)] = str(error)
                continue
            document = prefix + id_of(name, LONGEST_ID - len(prefix))
            if document in origin:
                raise InputError(
                    f"{origin[document]} and {_shown(path)} would both be the document {document!r}; name the folder "
                    "that holds both, or index them one after the other with different prefixes"
                )
            origin[document] = _shown(path)
            found.append(TextFile(document, _printable(name)[-LONGEST_NAME:], _shown(path.absolute()), text))
    return Found(found, skipped)


def id_of(name: str, longest: int = LONGEST_ID) -> str:
    """The id of a file by its path below the folder. One that has other signs than ids may have is told apart from
    others by a hash.

    >>> id_of("guide/first-steps.md"), id_of("déjà vu.txt")
    ('guide:first-steps.md', 'd-j-vu.txt-479d4b48feaf')
    """
    if _PLAIN.fullmatch(name) and len(name) <= longest:
        return name.replace("/", ":")
    slug = re.sub(r"[^A-Za-z0-9._]+", "-", name.replace("/", ":")).lstrip("-._") or "file"
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:12]
    return f"{slug[: longest - 13]}-{digest}"


def _walk(folder: Path, left_out: set[str]) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and os.path.realpath(os.path.join(root, name)) not in left_out
        )
        yield from (Path(root, name) for name in sorted(names) if not name.startswith("."))


def _is_wanted(name: str, patterns: Sequence[str]) -> bool:
    last = name.rpartition("/")[2]
    return not patterns or any(fnmatch(name, one) or fnmatch(last, one) for one in patterns)


def _text_in(path: Path) -> str:
    if not path.is_file():
        raise ValueError("no ordinary file")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.start})") from None
    if "\0" in text:
        raise ValueError("binary: it has a NUL")
    if not text.strip():
        raise ValueError("empty")
    return text


def _printable(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()


def _shown(path: Path) -> str:
    return _printable(str(path))
