"""A folder that a command writes its results to: by one command at a time, and over nothing but its own.

``DIR/.contentrope`` holds the lock, who holds it, files that are not whole yet, and a record of all files that were
written with their SHA-256. Paths in the record are relative and no times are kept, so a copy is as good as the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from contentrope.errors import InputError
from contentrope.files import append_line, digest_of, flush, kept_by, writing

HIDDEN, RECORD = ".contentrope", "written.jsonl"
RUN, REPORT = "run", "report"
"""Parts: of commands that compute, whose logs grow, and of those that read results and write a report."""
REMEDY = "move it away, or choose another folder"


@dataclass
class Entry:
    """What is known of a file: every content it was given, or how much of it was there when it was last looked at."""

    contents: set[str] = field(default_factory=set)
    beginning: tuple[int, str] | None = None

    def fits(self, path: Path) -> bool:
        if self.beginning is None:
            return digest_of(path) in self.contents
        length, digest = self.beginning
        with path.open("rb") as file:
            return hashlib.sha256(file.read(length)).hexdigest() == digest


class Record:
    """What was written to a folder. Several processes may add to it at the same time."""

    def __init__(self, folder: str | Path, command: str = "", part: str = RUN) -> None:
        """``command``: what another command wrote is no more its own than what a user did."""
        self.command = command
        self.folder = Path(os.path.abspath(folder))
        self.hidden = self.folder / HIDDEN
        self.path, self.scratch = self.hidden / RECORD, self.hidden / f"{part}.tmp"

    def require_own(self, *paths: Path | str) -> None:
        """Refuse paths, of files or folders, that hold what nobody recorded, or what has changed since."""
        known: dict[str, Entry] | None = None
        for path in (self.folder / name for name in paths):
            if not os.path.lexists(path):
                continue
            known = self.entries() if known is None else known
            for file in _files(path):
                entry = known.get(self._name(file))
                if entry is None or file.is_symlink() or not file.is_file():
                    raise InputError(f"{file} was not written by this command; {REMEDY}")
                if not entry.fits(file):
                    raise InputError(f"{file} has changed since it was written; {REMEDY}")

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
                told = json.loads(line)
                if told["by"] != self.command:
                    continue
                name, digest, length = str(told["path"]), str(told["sha256"]), told.get("bytes")
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


class OutputFolder(Record):
    """The folder of a command while it runs: held by one process, which alone may write to it.

    >>> import tempfile
    >>> from contentrope.files import write_whole
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Path(folder, "mine").touch()
    ...     with OutputFolder(folder) as out:
    ...         write_whole(out.folder / "loss.json", b"1.5")
    ...         out.require_own("loss.json", "nothing")
    ...         try:
    ...             out.require_own("mine")
    ...         except InputError as error:
    ...             print(str(error).partition("mine ")[2])
    was not written by this command; move it away, or choose another folder
    """

    def __init__(
        self, folder: str | Path, command: str = "", *, part: str = RUN, patience: float = 0.0, leads: bool = True
    ) -> None:
        """``part``: commands that write other files of one folder may do so at the same time, each under a name of its
        own. ``patience``: seconds to wait for another holder. Of several processes of one command, one ``leads``."""
        super().__init__(folder, command, part)
        self.part, self.patience, self.leads = part, patience, leads
        self.told = Path(folder)
        self._leaving = ExitStack()

    def __enter__(self) -> OutputFolder:
        if self.leads:
            with ExitStack() as entering:
                entering.callback(self._remove_empty, self._made())
                self._hold(entering)
                entering.enter_context(kept_by(self))
                self._leaving = entering.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._leaving.close()

    def claim(self, *names: str, inputs: Iterable[str | Path] = ()) -> None:
        """Refuse, before any work is done, names that the command will write to and may not: they hold something else,
        or what the command reads."""
        if self.leads:
            self._require_not_read(inputs, names)
            self.require_own(*names)

    def _require_not_read(self, inputs: Iterable[str | Path], names: Iterable[str]) -> None:
        for given in map(Path, inputs):
            source = Path(os.path.realpath(given))
            for target in (Path(os.path.realpath(self.folder / name)) for name in names):
                if source.exists() and (target == source or target in source.parents):
                    raise InputError(f"{given} is read, and {target} will be written; choose another folder for --out")

    def _made(self) -> list[Path]:
        """The folders that are not there yet, innermost first."""
        return [place for place in (self.folder, *self.folder.parents) if not place.exists()]

    def _hold(self, entering: ExitStack) -> None:
        with writing(self.folder):
            self._lock(entering)
            entering.callback(self._leave)
            shutil.rmtree(self.scratch, ignore_errors=True)  # what a killed command left
            self.scratch.mkdir()
            self._holder_file.write_text(json.dumps(_this_process()), encoding="utf-8")

    def _lock(self, entering: ExitStack) -> None:
        from filelock import FileLock, Timeout

        for attempt in range(ATTEMPTS):
            try:
                self.hidden.mkdir(parents=True, exist_ok=True)
                lock = FileLock(self.hidden / f"{self.part}.lock")
                entering.enter_context(lock.acquire(timeout=self.patience))
                return
            except Timeout:
                raise InputError(f"{self.told} is in use by {self._holder()}; {BUSY}") from None
            except FileNotFoundError:  # another command has just left and taken the folder with it
                if attempt == ATTEMPTS - 1:
                    raise

    @property
    def _holder_file(self) -> Path:
        return self.hidden / f"{self.part}.json"

    def _holder(self) -> str:
        try:
            told = json.loads(self._holder_file.read_text(encoding="utf-8"))
            return f"process {told['pid']} on {told['host']} since {told['since']} ({told['command']})"
        except (OSError, ValueError, RecursionError, KeyError, TypeError):
            return "another command"

    def _leave(self) -> None:
        if self.part == RUN:
            with suppress(OSError):  # of a full disk: what is recorded already is enough
                self.seal_logs()
        shutil.rmtree(self.scratch, ignore_errors=True)
        self._holder_file.unlink(missing_ok=True)
        if not self.path.exists() and not list(self.hidden.glob("*.json")):
            with suppress(OSError):  # nothing was written, and nobody else is at it: no trace is left
                (self.hidden / f"{self.part}.lock").unlink()
                self.hidden.rmdir()

    @staticmethod
    def _remove_empty(made: list[Path]) -> None:
        with suppress(OSError):  # not empty
            for place in made:
                place.rmdir()


MOST_OF_A_COMMAND = 300
ATTEMPTS = 100
BUSY = "wait until it is done, or choose another folder"


def require_result(path: Path, is_ours: Callable[[dict[str, Any]], bool]) -> None:
    """Refuse to write over a file that is no result of the same command, by what its JSON says."""
    if not os.path.lexists(path):
        return
    found = None
    if path.is_file():
        with suppress(ValueError, RecursionError):
            found = json.loads(path.read_bytes())
    if not isinstance(found, dict) or not is_ours(found):
        raise InputError(f"{path} is not a result of this command; move it away, or choose another file")


def _files(path: Path) -> list[Path]:
    """The files of a folder, links among them, or the file itself."""
    if path.is_symlink() or not path.is_dir():
        return [path]
    return sorted(found for found in path.rglob("*") if found.is_symlink() or not found.is_dir())


def _this_process() -> dict[str, Any]:
    program = Path(sys.argv[0] if sys.argv else "python")
    name = program.parent.name if program.name == "__main__.py" else program.name
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "command": shlex.join([name, *sys.argv[1:]])[:MOST_OF_A_COMMAND],
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
