"""What the tests of the documents read: result files and words."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.readme import ROOT


def results_of(name: str) -> dict[str, Any]:
    """A result file, by its name without the ending."""
    found: dict[str, Any] = json.loads((ROOT / "results" / f"{name}.json").read_text())
    return found


def words_of(document: str) -> str:
    """A document without its line breaks."""
    return " ".join((ROOT / document).read_text().split())


def as_share(hits: float) -> str:
    return f"{hits:.3f}".removeprefix("0")
