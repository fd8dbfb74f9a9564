"""Writing files and folders whole or not at all, and in an output folder only over what a command wrote itself."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, runtime_checkable

from contentrope.errors import InputError, WriteError

REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or have the quota raised",
    errno.EFBIG: "allow larger files (ulimit -f)",
}


@runtime_checkable
class Keeper(Protocol):
    """Knows what was written to ``folder``, and is asked before anything in it is replaced."""

    folder: Path
    scratch: Path
    """Where files lie until they are whole."""

    def require_own(self, *paths: Path | str) -> None:
        """Refuse paths that hold what nobody recorded, or what has changed since."""

    def note(self, digests: Mapping[Path, str]) -> None:
        """Record files by their SHA-256, before they get their names."""

    def note_log(self, path: Path, beginning: bytes) -> None:
        """Record a file that grows, by what it begins with."""


_keepers: list[Keeper] = []


@contextmanager
def kept_by(keeper: Keeper) -> Iterator[None]:
    """Have ``keeper`` asked, in this process, about every file that is written to its folder."""
    _keepers.append(keeper)
    try:
        yield
    finally:
        _keepers.remove(keeper)


def keeper_of(path: Path) -> Keeper | None:
    """Of the folders that are kept, the innermost one that holds ``path``; of its keepers, the last to come."""
    place = Path(os.path.abspath(path))
    holding = [
        keeper
        for keeper in reversed(_keepers)
        if keeper.folder in place.parents and keeper.scratch not in place.parents
    ]
    return max(holding, key=lambda keeper: len(keeper.folder.parts), default=None)


def write_whole(path: str | Path, data: bytes) -> None:
    """Replace ``path`` with ``data``; after a crash or a full disk the old content is still there."""
    path = Path(path)
    if path.exists() and not path.is_file():  # a device or a pipe would be gone for everybody
        raise InputError(f"{path} is no ordinary file; choose another")
    keeper = keeper_of(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=keeper.scratch if keeper else path.parent, prefix=f".{path.name}.")
    try:
        with writing(path, len(data)):
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            if keeper is not None:
                require_replaceable({path: data})
                keeper.note({path: hashlib.sha256(data).hexdigest()})
            os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def require_own(*paths: Path) -> None:
    """Refuse, before any work is done, what could not be replaced after it. In folders that nobody keeps, all can."""
    for path in paths:
        keeper = keeper_of(path)
        if keeper is not None:
            keeper.require_own(path)


def require_replaceable(files: Mapping[Path, bytes]) -> None:
    """The same for files that may be there as they would be written."""
    require_own(*(path for path, data in files.items() if path.is_symlink() or not _has(path, data)))


def _has(path: Path, data: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data


def write_folder(
    folder: Path, write: Callable[[Path], None], is_earlier: Callable[[Path], bool] = lambda folder: False
) -> None:
    """A folder appears under its name when it is complete; only then an earlier one goes, if it was written here.

    Where nobody keeps a record of what was written, a folder that holds something is replaced only if it
    ``is_earlier``, one of the same kind, and has no files but those that are written now.
    """
    keeper = keeper_of(folder)
    if keeper is None and folder.exists() and any(folder.iterdir()) and not is_earlier(folder):
        raise InputError(f"{folder} is not empty and may be somebody's; choose another folder, or move it away")
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(dir=keeper.scratch if keeper else folder.parent, prefix=f".{folder.name}."))
    try:
        with writing(folder):
            (place / "new").mkdir(mode=0o755)
            write(place / "new")
            if keeper is not None:
                keeper.require_own(folder)
                found = digests(place / "new")
                keeper.note({folder / path.relative_to(place / "new"): digest for path, digest in found.items()})
            else:
                _require_no_others(folder, place / "new")
            _swap(place, folder)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _require_no_others(folder: Path, new: Path) -> None:
    for path in sorted(folder.rglob("*")):
        if not path.is_dir() and not (new / path.relative_to(folder)).exists():
            raise InputError(f"{path} is none of the files that are written; choose another folder, or move it away")


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
    keeper = keeper_of(path)
    if keeper is not None:
        keeper.require_own(path)
        keeper.note_log(path, beginning)
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


def digests(folder: Path) -> dict[Path, str]:
    """Every file below ``folder``, with its SHA-256."""
    return {path: digest_of(path) for path in sorted(folder.rglob("*")) if path.is_file()}


@contextmanager
def writing(path: Path, needed: int | None = None) -> Iterator[None]:
    """Say of a failure to write what could not be written, and what helps."""
    try:
        yield
    except WriteError:
        raise
    except Exception as error:
        number = _system_error(error)
        if number is None:
            raise
        room = "" if needed is None else f"{needed:,} bytes needed, "
        room = f" ({room}{_free(path):,} free)" if number in (errno.ENOSPC, errno.EDQUOT) else ""
        remedy = REMEDIES.get(number, "see to it that it can be")
        raise WriteError(
            number,
            f"{path} could not be written: {os.strerror(number)}{room}; {remedy}, then run the same command again",
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
