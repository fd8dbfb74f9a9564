"""From the words of a command line to a command, and the errors that a command may end with."""

from __future__ import annotations

import io
import math
import re
import sys
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import redirect_stderr
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from tyro.conf import HelptextFromCommentsOff, OmitArgPrefixes, OmitSubcommandPrefixes

from contentrope.cli import LONGEST
from contentrope.errors import BackendError, CacheError, CheckpointError, InputError, quoted
from contentrope.training import DivergedError, ProcessError
from contentrope.training.sizes import gigabytes

EXPECTED_ERRORS = (
    InputError,
    BackendError,
    CacheError,
    CheckpointError,
    DivergedError,
    ProcessError,
    BrokenProcessPool,
    torch.OutOfMemoryError,
    OSError,
)


def parse_words(commands: Any, words: Sequence[str], program: str, description: str | None = None) -> Any:
    """One of the ``commands``, or the dataclass that it is; a wrong command line says what is allowed."""
    if "" in words:
        before = words[: list(words).index("")]
        raise InputError(f"what follows {quoted(before[-1]) if before else program} is empty; give it a value")
    boxed = io.StringIO()
    try:
        with redirect_stderr(boxed):
            command: Any = tyro.cli(
                commands,
                prog=program,
                description=description,
                args=words,
                config=(OmitArgPrefixes, OmitSubcommandPrefixes, HelptextFromCommentsOff),
            )
    except SystemExit as stop:
        if stop.code:
            sys.stderr.write(writable(plain_words(boxed.getvalue())))
        raise
    require_ordinary(command)
    return command


def require_ordinary(options: Any) -> None:
    """Refuse what no option can mean, whatever its name: numbers beyond 64 bits, infinite ones, words that no file
    can hold. Each option then checks what it means itself."""
    for name, value in vars(options).items():
        if is_dataclass(value):
            require_ordinary(value)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, int) and abs(each) >= 2**63:
                raise InputError(f"{name} must be less than 2**63, got {quoted(each)}")
            if isinstance(each, float) and not math.isfinite(each):
                raise InputError(f"{name} must be a finite number, got {each}")
            if isinstance(each, str) and not is_text(each):
                raise InputError(f"{name} has a character that is none in UTF-8, or NUL: {quoted(each)}")
            if isinstance(each, Path) and "\0" in str(each):
                raise InputError(f"{name} has a NUL, which no file's name can have: {quoted(str(each))}")


def writable(message: str) -> str:
    """Without what no stream can write, as the words of a command line may have it."""
    return message.encode("utf-8", "backslashreplace").decode("utf-8")


def is_text(word: str) -> bool:
    """
    >>> is_text("é"), is_text("\\udcff"), is_text("\\0")
    (True, False, False)
    """
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in word


def memory_asked(error: Exception) -> str | None:
    """How much was asked for when there was not as much, in words; None for any other error.

    >>> memory_asked(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8000000000 bytes"))
    ', 8 GB were asked for at once'
    """
    if isinstance(error, MemoryError):
        return ""
    said = re.search(r"allocate (?:memory: you tried to allocate )?(\d+) bytes", str(error))
    if said:
        return f", {gigabytes(int(said[1]))} were asked for at once"
    return "" if "Storage size calculation overflowed" in str(error) else None


def plain_words(boxed: str) -> str:
    """tyro's complaint without its frame: one line that says what is wrong, then what it suggests instead.

    >>> print(plain_words("╭─ Oh ─╮\\n│ No --x │\\n│ ────── │\\n│ Perhaps you meant: │\\n│     --y │\\n╰──╯"), end="")
    error: No --x
    Perhaps you meant:
        --y

    A terminal that knows no such characters gets another frame, whose title has a line of its own:

    >>> print(plain_words(" Oh \\n ---- \\n  No --x \\n  ------\\n  For full helptext, see --help "), end="")
    error: No --x
    """
    parts: list[list[str]] = [[]]
    for line in boxed.splitlines():
        inner = line.removeprefix("│ " if line.startswith("│") else "  ").rstrip().removesuffix("│").rstrip()
        if inner and not inner.strip("─- "):
            parts.append([])
        elif not line.startswith(("╭", "╰")):
            parts[-1].append(inner)
    if len(parts) > 1 and not boxed.startswith("╭"):
        del parts[0]
    wrong, *more = parts
    suggestions = [line for part in more if not part[0].startswith(("Argument helptext", "For full")) for line in part]
    return "\n".join([f"error: {_in_words(' '.join(' '.join(wrong).split()))[:LONGEST]}", *suggestions]) + "\n"


def _in_words(complaint: str) -> str:
    """What Python says of a word that is no number, as one would say it.

    >>> _in_words("Error parsing --steps: invalid literal for int() with base 10: 'many'")
    "Error parsing --steps: 'many' is not a whole number"
    """
    complaint = re.sub(r"invalid literal for int\(\) with base 10: (.*)$", r"\1 is not a whole number", complaint)
    return re.sub(r"could not convert string to float: (.*)$", r"\1 is not a number", complaint)
