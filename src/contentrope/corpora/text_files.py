"""Any text of the user's: one file, or a folder of them."""

from __future__ import annotations

import codecs
import hashlib
import os
from pathlib import Path
from typing import NoReturn

from contentrope.errors import InputError, quoted

SUFFIXES = (".txt", ".text", ".md", ".rst", ".tex", ".org")
"""What counts as text in a folder, in upper or lower case. A file named by itself may have any suffix."""


def text_of(path: str | Path) -> str:
    """The text of a UTF-8 file, or of all text files in a folder and the folders in it.

    A byte order mark is dropped, and every line ends with ``\\n``, whatever the system it comes from. Of a folder,
    the files with one of the :data:`SUFFIXES` are read in the order of their relative paths; hidden files, hidden
    folders and links to folders are not. Where a file does not end its last line and another follows, a newline
    is put between them.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "1.txt").write_text("to be")
    ...     _ = Path(folder, "2.md").write_text("or not\\n")
    ...     text_of(folder)
    'to be\\nor not\\n'
    """
    if os.path.isdir(path):
        text = joined([_text_of_file(file) for file in _text_files(Path(path))])
    elif os.path.isfile(path):
        text = _text_of_file(Path(path))
    elif os.path.exists(path):
        raise InputError(f"{path} is neither a file nor a folder, but a pipe or a device; name a file that is kept")
    else:
        raise InputError(f"there is no file or folder {quoted(str(path))}; check the path")
    if not text:
        raise InputError(f"{path} holds no text: it is empty; name one that is not")
    return text


def joined(texts: list[str]) -> str:
    """One after the other, each on lines of its own."""
    texts = [text for text in texts if text]
    ended = [text if text.endswith("\n") else text + "\n" for text in texts[:-1]]
    return "".join(ended + texts[-1:])


def fingerprint(text: str) -> str:
    """SHA-256 of a text, to tell whether two results saw the same one.

    >>> fingerprint("to be")[:8]
    '0af1207e'
    """
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _text_files(folder: Path) -> list[Path]:
    found = []
    for parent, folders, names in os.walk(folder, onerror=_refuse_unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = [Path(parent, name) for name in names if not name.startswith(".")]
        # Pipes and the like are passed over; a dangling link is kept, so that reading it complains.
        found += [p for p in paths if p.suffix.lower() in SUFFIXES and (os.path.isfile(p) or not os.path.exists(p))]
    if not found:
        raise InputError(
            f"folder {folder} has no text files: none ends in {' '.join(SUFFIXES)}; "
            "rename them so, or name a single file"
        )
    # As text: the order of Path objects depends on the system.
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def _refuse_unreadable(error: OSError) -> NoReturn:
    raise InputError(f"{error.filename} cannot be read ({error}); make it readable or move it away") from error


def _text_of_file(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error}); make it readable or move it away") from error
    return _decoded(data, path).replace("\r\n", "\n").replace("\r", "\n")


def _decoded(data: bytes, path: Path) -> str:
    if b"\0" in data:
        raise InputError(
            f"{path} is not a text file: there is a NUL byte at offset {data.index(0)}; "
            "name a text file, or convert UTF-16 with: iconv -f UTF-16 -t UTF-8 OLD > NEW"
        )
    mark = len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0
    try:
        return data[mark:].decode("utf-8")
    except UnicodeDecodeError as error:
        offset = mark + error.start
        raise InputError(
            f"{path} is not UTF-8: byte 0x{data[offset]:02x} at offset {offset} ({error.reason}); "
            "convert it, for example with: iconv -f LATIN1 -t UTF-8 OLD > NEW"
        ) from None
