"""Rebuild the report of a result file: ``python -m contentrope.reports RESULTS.json [--out DIR]``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from contentrope.errors import BackendError, InputError
from contentrope.outputs import REPORT, OutputFolder
from contentrope.reports import draw_picture, read_results, write_report
from contentrope.reports.read import Results


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0 done, 2 refused."""
    options = _parser().parse_args(arguments)
    try:
        results = read_results(options.results)
        if options.picture_only:
            written = [_write_picture(results, options.picture_only)]
        else:
            folder = options.out or options.results.parent
            with OutputFolder(folder, "report", part=REPORT):
                written = write_report(results, folder)
    except (InputError, BackendError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(*written, sep="\n")
    return 0


def _write_picture(results: Results, path: Path) -> Path:
    """Never over another file: a picture does not say who drew it."""
    if os.path.lexists(path):
        raise InputError(f"{path} is there already; move it away, or choose another name")
    draw_picture(results, path)
    return path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m contentrope.reports", description="Rebuild the report of an experiment."
    )
    parser.add_argument("results", type=Path, metavar="RESULTS.json", help="result file of the experiment")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--out", type=Path, metavar="DIR", help="folder to write to (default: that of the result file)")
    where.add_argument("--picture-only", type=Path, metavar="PATH.svg", help="draw the main picture and nothing else")
    return parser


if __name__ == "__main__":
    sys.exit(main())
