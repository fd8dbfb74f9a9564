"""A folder that a command writes its results to: by one command at a time, and over nothing but its own.

``DIR/.contentrope`` holds the lock, who holds it, files that are not whole yet, and a record of all files that were
written with their SHA-256. Paths in the record are relative and no times are kept, so a copy is as good as the folder.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from contentrope.errors import InputError
from contentrope.files import Record, kept_by, writing

RUN, REPORT = "run", "report"
"""Parts: of commands that compute, whose logs grow, and of those that read results and write a report."""
MOST_OF_A_COMMAND = 300
ATTEMPTS = 100


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
        self.given = Path(folder)
        self._lock_file, self._holder_file = self.hidden / f"{part}.lock", self.hidden / f"{part}.json"
        self._leaving = ExitStack()

    def __enter__(self) -> OutputFolder:
        if self.leads:
            with ExitStack() as entering:
                # Those that are not there yet, innermost first; they go again if nothing is written.
                made = [place for place in (self.folder, *self.folder.parents) if not place.exists()]
                entering.callback(_remove_empty, made)
                with writing(self.folder):
                    self._hold(entering)
                entering.enter_context(kept_by(self))
                self._leaving = entering.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._leaving.close()

    def claim(self, *names: str, inputs: Iterable[str | Path] = ()) -> None:
        """Refuse, before any work is done, names that the command will write to and may not: they hold something else,
        or what the command reads."""
        if not self.leads:
            return
        targets = [Path(os.path.realpath(self.folder / name)) for name in names]
        for given in inputs:
            source = Path(os.path.realpath(given))
            for target in targets if source.exists() else ():
                if target == source or target in source.parents:
                    raise InputError(f"{given} is read, and {target} will be written; choose another folder for --out")
        self.require_own(*names)

    def _hold(self, entering: ExitStack) -> None:
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
                entering.enter_context(FileLock(self._lock_file).acquire(timeout=self.patience))
                return
            except Timeout:
                raise InputError(
                    f"{self.given} is in use by {self._holder()}; wait until it is done, or choose another folder"
                ) from None
            except FileNotFoundError:  # another command has just left and taken the folder with it
                if attempt == ATTEMPTS - 1:
                    raise

    def _holder(self) -> str:
        try:
            holder = json.loads(self._holder_file.read_text(encoding="utf-8"))
            return f"process {holder['pid']} on {holder['host']} since {holder['since']} ({holder['command']})"
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
                self._lock_file.unlink()
                self.hidden.rmdir()


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


def _remove_empty(folders: list[Path]) -> None:
    with suppress(OSError):  # not empty
        for folder in folders:
            folder.rmdir()


def _this_process() -> dict[str, Any]:
    program = Path(sys.argv[0] if sys.argv else "python")
    name = program.parent.name if program.name == "__main__.py" else program.name
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "command": shlex.join([name, *sys.argv[1:]])[:MOST_OF_A_COMMAND],
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
