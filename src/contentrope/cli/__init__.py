"""The command line; ``commands.py`` names the commands, each has a file of its own.

Nothing here imports torch, tyro or rich before :func:`run_program` is ready for it: torch takes seconds, in which
Ctrl-C must be answered, and reads while it loads how its threads shall wait.
"""

from __future__ import annotations

import io
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import NoReturn, Protocol

from contentrope.results import WAITING
from contentrope.version import __version__

__all__ = ["main"]

RESUMABLE = ("train", "finetune", "index")
"""Commands that continue where they were stopped."""
MOVED = {"reproduce": "experiments", "report": "experiments.report", "facts": "experiments.facts.show"}
"""Commands of before, and the module of the repository that now does their work."""
LEAST_COLUMNS = 20
"""In fewer the help would be broken into single letters, for minutes; a terminal breaks longer lines itself."""
LONGEST = 1000
"""Characters of a message; more of them come from a value that is no value."""
WAITING_BRIEFLY = {"GOMP_SPINCOUNT": "3000", "KMP_BLOCKTIME": "0"}
"""Turns, of some microseconds in all, and milliseconds. Without any a small model waits for threads to wake up."""


class Command(Protocol):
    def run(self) -> None: ...


Parser = Callable[[Sequence[str]], Command]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 2 refused, 130 stopped with Ctrl-C."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    first = words[0] if words else ""
    if words == ["--version"]:
        print(f"contentrope {__version__}")
        return 0
    if first in MOVED:
        again = shlex.join(["python", "-m", MOVED[first], *("growth" if w == "shakespeare" else w for w in words[1:])])
        return _refused(f"contentrope {first} has left the package; in a checkout of the repository, run: {again}")
    return run_program("contentrope", _commands, words, whole_process=arguments is None, resumable=first in RESUMABLE)


def _commands() -> Parser:
    from contentrope.cli.commands import parse

    return parse


def run_program(
    name: str,
    load: Callable[[], Parser],
    words: Sequence[str],
    *,
    whole_process: bool,
    resumable: bool,
    needs: Sequence[str] = ("tyro", "rich"),
    extra: str = "cli",
) -> int:
    """The exit status of one command of a program: ``load`` imports what reads its words, which may take seconds.

    ``whole_process``: the process has nothing else to do. ``needs``: packages, installed as ``extra`` of this one.
    """
    if whole_process:
        wait_briefly()
        if shutil.get_terminal_size().columns < LEAST_COLUMNS:
            os.environ["COLUMNS"] = str(LEAST_COLUMNS)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may have it ignored
            signal.signal(signal.SIGINT, _leave)
    missing = [package for package in needs if find_spec(package) is None]
    if missing:
        return _refused(f"{name} needs {', '.join(missing)}: pip install contentrope[{extra}]")
    try:
        return _run(load, words)
    except KeyboardInterrupt:
        if whole_process:  # another Ctrl-C while Python cleans up would be a traceback
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        again = f"what is done is saved. To continue, run the same command again: {name} {shlex.join(words)}"
        print(f"\nstopped{f'; {again}' if resumable else ''}", file=sys.stderr)
        return 130


def wait_briefly() -> None:
    """Threads of torch that have nothing to do soon sleep, unless the user has said how they shall wait.

    By default they spin for long, which takes the cores from whatever else runs: ten times slower beside other work.
    """
    if not any(name in os.environ for name in WAITING):
        os.environ |= WAITING_BRIEFLY


def _leave(*_: object) -> NoReturn:
    """Ctrl-C while modules are imported: some swallow the exception, or make another one of it."""
    print("\nstopped", file=sys.stderr, flush=True)
    os._exit(130)


def _run(load: Callable[[], Parser], words: Sequence[str]) -> int:
    from contentrope.cli.parsing import EXPECTED_ERRORS, memory_asked

    parse = load()
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # a terminal without a character shows ? in its place
    try:
        parse(words).run()
    except BrokenPipeError:  # the reader of our output has seen enough, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except EXPECTED_ERRORS as error:
        return _refused(str(error))
    except RecursionError:
        return _refused("a file is nested too deep to be read; restore a whole copy of it")
    except (MemoryError, RuntimeError) as error:
        asked = memory_asked(error)
        if asked is None:
            raise
        return _refused(f"the memory does not suffice{asked}; take a smaller model, batch, length or number of them")
    return 0


def _refused(message: str) -> int:
    line = " ".join(message.encode("utf-8", "backslashreplace").decode("utf-8").split())
    print(f"error: {line if len(line) <= LONGEST else line[:LONGEST] + ' ...'}", file=sys.stderr)
    return 2
