"""Writing files and folders whole or not at all, and in an output folder only over what a command wrote itself."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contentrope.errors import InputError, WriteError

HIDDEN, RECORD = ".contentrope", "written.jsonl"
MOVE = "move it away, or choose another folder"
REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or have the quota raised",
    errno.EFBIG: "allow larger files (ulimit -f)",
}


def write_whole(path: str | Path, data: bytes) -> None:
    """Replace ``path`` with ``data``; after a crash or a full disk the old content is still there."""
    path = Path(path)
    if path.exists() and not path.is_file():  # a device or a pipe would be gone for everybody
        raise InputError(f"{path} is no ordinary file; choose another")
    record = record_of(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=record.scratch if record else path.parent, prefix=f".{path.name}.")
    try:
        with writing(path, len(data)):
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            if record is not None:
                require_replaceable({path: data})
                record.note({path: hashlib.sha256(data).hexdigest()})
            os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_folder(
    folder: Path, write: Callable[[Path], None], is_earlier: Callable[[Path], bool] = lambda folder: False
) -> None:
    """Write a folder, which gets its name when it is complete; only then an earlier one goes, if it was written here.

    Where nobody keeps a record of what was written, a folder that holds something is replaced only if it
    ``is_earlier``, one of the same kind, and has no files but those that are written now.
    """
    record = record_of(folder)
    if record is None and folder.exists() and any(folder.iterdir()) and not is_earlier(folder):
        raise InputError(f"{folder} is not empty and may be somebody's; choose another folder, or move it away")
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(dir=record.scratch if record else folder.parent, prefix=f".{folder.name}."))
    new = place / "new"
    try:
        with writing(folder):
            new.mkdir(mode=0o755)
            write(new)
            if record is not None:
                record.require_own(folder)
                record.note({folder / path.relative_to(new): digest_of(path) for path in _files(new)})
            else:
                for path in _files(folder) if folder.exists() else ():
                    if not (new / path.relative_to(folder)).exists():
                        raise InputError(f"{path} is none of the files that are written; {MOVE}")
            _swap(place, folder)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _swap(place: Path, folder: Path) -> None:
    """Give ``place/new`` the name ``folder``; what has it now becomes ``place/old``."""
    if folder.exists():
        os.replace(folder, place / "old")
    try:
        os.replace(place / "new", folder)
    except BaseException:
        if (place / "old").exists():
            os.replace(place / "old", folder)
        raise


def append_line(path: Path, line: bytes) -> None:
    """Add a line and hand it to the system at once; after a failure the file ends as before."""
    with writing(path, len(line)):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            before, left = file.tell(), line
            try:
                while left:
                    left = left[file.write(left) :]
            except OSError:
                with suppress(OSError):
                    os.truncate(path, before)
                raise


def begin_log(path: Path, beginning: bytes) -> None:
    """Let a file that grows by :func:`append_line` go on after ``beginning``, which is what there is of it, or less."""
    record = record_of(path)
    if record is not None:
        record.require_own(path)
        record.note_log(path, beginning)
    if path.exists() and path.read_bytes() != beginning:
        write_whole(path, beginning)


def flush(path: Path) -> None:
    """Wait until a file is on the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def digest_of(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- what a command wrote -------------------------------------------------------------------------------------------


@dataclass
class Entry:
    """The record of a file: the digest of every content it was given, or a log's length and digest when last seen."""

    contents: set[str] = field(default_factory=set)
    beginning: tuple[int, str] | None = None

    def fits(self, path: Path) -> bool:
        if self.beginning is None:
            return digest_of(path) in self.contents
        length, digest = self.beginning
        with path.open("rb") as file:
            return hashlib.sha256(file.read(length)).hexdigest() == digest


class Record:
    """What a command wrote to a folder, by SHA-256. Several processes may add to it at the same time."""

    def __init__(self, folder: str | Path, command: str = "", part: str = "run") -> None:
        """``command``: what another command wrote is no more its own than what a user did. ``part``: see
        :class:`~contentrope.outputs.OutputFolder`; files that are not whole yet lie in a folder of that name."""
        self.command = command
        self.folder = Path(os.path.abspath(folder))
        self.hidden = self.folder / HIDDEN
        self.path, self.scratch = self.hidden / RECORD, self.hidden / f"{part}.tmp"

    def require_own(self, *paths: Path | str) -> None:
        """Refuse paths, of files or folders, that hold what nobody recorded, or what has changed since."""
        present = [path for path in (self.folder / name for name in paths) if os.path.lexists(path)]
        known = self.entries() if present else {}
        for file in (file for path in present for file in _files(path)):
            entry = known.get(self._name(file))
            if entry is None or file.is_symlink() or not file.is_file():
                raise InputError(f"{file} was not written by this command; {MOVE}")
            if not entry.fits(file):
                raise InputError(f"{file} has changed since it was written; {MOVE}")

    def note(self, digests: Mapping[Path, str]) -> None:
        """Record files by their SHA-256, before they get their names: a command may be killed at any moment."""
        self._append({"path": self._name(path), "by": self.command, "sha256": d} for path, d in digests.items())

    def note_log(self, path: Path, beginning: bytes) -> None:
        """Record a file that grows, by what it begins with."""
        digest = hashlib.sha256(beginning).hexdigest()
        self._append([{"path": self._name(path), "by": self.command, "bytes": len(beginning), "sha256": digest}])

    def adopt(self, name: str) -> None:
        """Take a file for one's own: its contents say so."""
        self.note({self.folder / name: digest_of(self.folder / name)})

    def entries(self) -> dict[str, Entry]:
        """What the command wrote, by relative path. A line that was cut short is left out: its file is not there."""
        found: dict[str, Entry] = {}
        for line in self.path.read_bytes().splitlines() if self.path.exists() else ():
            with suppress(ValueError, RecursionError, KeyError, TypeError):
                written = json.loads(line)
                if written["by"] != self.command:
                    continue
                name, digest, length = str(written["path"]), str(written["sha256"]), written.get("bytes")
                entry = found.setdefault(name, Entry())
                if isinstance(length, int):
                    entry.beginning = length, digest
                else:
                    entry.contents.add(digest)
        return found

    def seal_logs(self) -> None:
        """Record files that have grown as they are now."""
        for name, entry in self.entries().items():
            path = self.folder / name
            if entry.beginning is None or not path.is_file() or path.stat().st_size == entry.beginning[0]:
                continue
            if entry.fits(path):
                self.note_log(path, path.read_bytes())

    def _name(self, path: Path) -> str:
        return Path(os.path.abspath(path)).relative_to(self.folder).as_posix()

    def _append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        # A line of its own for each, also after one that was cut short.
        text = "".join(f"\n{json.dumps(line)}\n" for line in lines)
        if text:
            append_line(self.path, text.encode())
            flush(self.path)


_records: list[Record] = []


@contextmanager
def kept_by(record: Record) -> Iterator[None]:
    """Have ``record`` asked, in this process, before anything in its folder is replaced, and told what is written."""
    _records.append(record)
    try:
        yield
    finally:
        _records.remove(record)


def record_of(path: Path) -> Record | None:
    """Of the folders that are kept, the innermost one that holds ``path``; of its records, the last to come."""
    above = Path(os.path.abspath(path)).parents
    holding = [record for record in reversed(_records) if record.folder in above and record.scratch not in above]
    return max(holding, key=lambda record: len(record.folder.parts), default=None)


def require_own(*paths: Path) -> None:
    """Refuse, before any work is done, what could not be replaced after it. In folders that nobody keeps, all can."""
    for path in paths:
        record = record_of(path)
        if record is not None:
            record.require_own(path)


def require_replaceable(files: Mapping[Path, bytes]) -> None:
    """The same for files that may be there as they would be written."""
    require_own(*(path for path, data in files.items() if not (path.is_file() and path.read_bytes() == data)))


def _files(path: Path) -> list[Path]:
    """The files of a folder, links among them, or the file itself."""
    if path.is_symlink() or not path.is_dir():
        return [path]
    return sorted(found for found in path.rglob("*") if found.is_symlink() or not found.is_dir())


# --- failures -------------------------------------------------------------------------------------------------------


@contextmanager
def writing(path: Path, needed: int | None = None) -> Iterator[None]:
    """Raise a failure to write as a :class:`WriteError` that names the file and what helps."""
    try:
        yield
    except WriteError:
        raise
    except Exception as error:
        number = _system_error(error)
        if number is None:
            raise
        is_full = number in (errno.ENOSPC, errno.EDQUOT)
        room = "" if needed is None else f"{needed:,} bytes needed, "
        remedy = REMEDIES.get(number, "see to it that it can be")
        raise WriteError(
            number,
            f"{path} could not be written: {os.strerror(number)}{f' ({room}{_free(path):,} free)' if is_full else ''}; "
            f"{remedy}, then run the same command again",
            str(path),
        ) from error


def _system_error(error: Exception) -> int | None:
    """The system's number of an error; libraries in Rust, as safetensors and tokenizers, have it in words only."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None


def _free(path: Path) -> int:
    place = next(place for place in (path, *path.absolute().parents) if place.is_dir())
    return shutil.disk_usage(place).free
