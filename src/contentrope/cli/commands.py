"""From the words of the command line to a command that can run."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import redirect_stderr
from typing import Annotated, Any, Protocol

import torch
import tyro
from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, subcommand

from contentrope.cli.evaluate import Evaluate
from contentrope.cli.facts import Facts as ShowFacts
from contentrope.cli.finetune import Finetune
from contentrope.cli.generate import Generate
from contentrope.cli.info import Info
from contentrope.cli.report import Report
from contentrope.cli.reproduce import Facts, Retrofit, Shakespeare, Timing
from contentrope.cli.train import Train
from contentrope.errors import BackendError, CacheError, CheckpointError, InputError
from contentrope.training import DivergedError, ProcessError

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

DESCRIPTION = """Content-based addressing: RoPE inside a text unit, a content-derived rotation per unit.

Example: contentrope reproduce shakespeare --preset quick"""


class Command(Protocol):
    def run(self) -> None: ...


def parse(arguments: Sequence[str]) -> Command:
    """Read the command line; a wrong one is an :class:`InputError` that says what is allowed."""
    experiments: Any = (
        Annotated[Shakespeare, subcommand("shakespeare")]
        | Annotated[Facts, subcommand("facts")]
        | Annotated[Timing, subcommand("timing")]
        | Annotated[Retrofit, subcommand("retrofit")]
    )
    reproduce = subcommand(
        "reproduce",
        description="Repeat an experiment, several seeds and variants, and write results and a report.",
        constructor_factory=lambda: experiments,
    )
    commands: Any = (
        Annotated[Any, reproduce]
        | Annotated[Report, subcommand("report")]
        | Annotated[Train, subcommand("train")]
        | Annotated[Finetune, subcommand("finetune")]
        | Annotated[Evaluate, subcommand("evaluate")]
        | Annotated[Generate, subcommand("generate")]
        | Annotated[ShowFacts, subcommand("facts")]
        | Annotated[Info, subcommand("info")]
    )
    boxed = io.StringIO()
    try:
        with redirect_stderr(boxed):
            return tyro.cli(
                commands,
                prog="contentrope",
                description=DESCRIPTION,
                args=arguments,
                config=(OmitArgPrefixes, OmitSubcommandPrefixes),
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        sys.stderr.write(plain_words(boxed.getvalue()))
        raise


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
    return "\n".join([f"error: {_in_words(' '.join(' '.join(wrong).split()))}", *suggestions]) + "\n"


def _in_words(complaint: str) -> str:
    """What Python says of a word that is no number, as one would say it.

    >>> _in_words("Error parsing --steps: invalid literal for int() with base 10: 'many'")
    "Error parsing --steps: 'many' is not a whole number"
    """
    complaint = re.sub(r"invalid literal for int\(\) with base 10: (.*)$", r"\1 is not a whole number", complaint)
    return re.sub(r"could not convert string to float: (.*)$", r"\1 is not a number", complaint)
