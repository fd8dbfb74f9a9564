"""What the paper reports, and what is to be reached: its timing table, measured on a Tesla T4."""

from __future__ import annotations

from typing import NamedTuple

from contentrope.reports.read import Results
from contentrope.reports.timing.read import timed_on_gpu

REPEATED = "content"
"""The scheme the paper timed."""


class Printed(NamedTuple):
    milliseconds: float
    """Of RoPE's step."""
    overhead: float
    """Percent."""


TABLE = {
    "0.8M": Printed(42, 10.3),
    "85M": Printed(702, 4.4),
    "302M": Printed(1215, 3.5),
    "680M": Printed(1428, 2.0),
}
TARGETS = {"0.8M": 5.0, "85M": 2.5, "302M": 2.0, "680M": 1.5}
"""Percent at most, on a GPU."""


def target(results: Results, row: str) -> float | None:
    """The overhead to stay below; none for a CPU, which the targets are not meant for."""
    return TARGETS.get(row) if timed_on_gpu(results, row) else None


def printed_overhead(row: str) -> float | None:
    return TABLE[row].overhead if row in TABLE else None
