"""``python -m experiments EXPERIMENT``: trains and measures, then writes a report."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from contentrope.cli import Parser, run_program


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one experiment and return its exit status: 0 done, 2 refused, 130 stopped with Ctrl-C."""
    return run_program(
        "python -m experiments",
        _experiments,
        sys.argv[1:] if arguments is None else list(arguments),
        whole_process=arguments is None,
        resumable=True,
        needs=("tyro", "rich", "jinja2", "matplotlib"),
        extra="cli,report",
    )


def _experiments() -> Parser:
    from experiments.command import parse

    return parse


if __name__ == "__main__":
    sys.exit(main())
