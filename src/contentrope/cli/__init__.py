"""The command line; ``commands.py`` names the commands, each has a file of its own.

Nothing here imports torch, tyro or rich before :func:`main` is ready for it: torch takes seconds, in which Ctrl-C must
be answered, and reads while it loads how its threads shall wait.
"""

from __future__ import annotations

import io
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from contentrope.version import __version__

__all__ = ["main"]


RESUMABLE = ("reproduce", "train", "finetune")
"""Commands that continue where they were stopped."""
LEAST_COLUMNS = 20
"""In fewer the help would be broken into single letters, for minutes; a terminal breaks longer lines itself."""
LONGEST = 1000
"""Characters of a message; more of them come from a value that is no value."""
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""What tells the threads of an OpenMP runtime, GNU's or LLVM's, how to wait."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 2 refused, 130 stopped with Ctrl-C."""
    whole_process, arguments = arguments is None, sys.argv[1:] if arguments is None else list(arguments)
    if list(arguments) == ["--version"]:
        print(f"contentrope {__version__}")
        return 0
    if whole_process:
        wait_passively()
        if shutil.get_terminal_size().columns < LEAST_COLUMNS:
            os.environ["COLUMNS"] = str(LEAST_COLUMNS)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may have it ignored
            signal.signal(signal.SIGINT, _leave)
    try:
        import rich  # noqa: F401
        import tyro  # noqa: F401
    except ImportError as error:
        print(f"error: the command line needs {error.name}: pip install contentrope[cli]", file=sys.stderr)
        return 2
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        if whole_process:  # another Ctrl-C while Python cleans up would be a traceback
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        again = shlex.join(["contentrope", *arguments])
        saved = f"; what is done is saved. To continue, run the same command again: {again}"
        print(f"\nstopped{saved if arguments[:1] and arguments[0] in RESUMABLE else ''}", file=sys.stderr)
        return 130


def wait_passively() -> None:
    """Threads of torch that have nothing to do sleep, unless the user has said how they shall wait.

    By default they spin, which takes the cores from whatever else runs: ten times slower beside other work.
    """
    if not any(name in os.environ for name in WAITING):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


def _leave(*_: object) -> NoReturn:
    """Ctrl-C while modules are imported: some swallow the exception, or make another one of it."""
    print("\nstopped", file=sys.stderr, flush=True)
    os._exit(130)


def _run(arguments: Sequence[str]) -> int:
    from contentrope.cli.commands import EXPECTED_ERRORS, memory_asked, parse

    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # a terminal without a character shows ? in its place
    try:
        parse(arguments).run()
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
