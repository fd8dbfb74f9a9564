"""Runs that are measured in pieces, each of which is kept at once: what an earlier command found, and what is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.results import read

Piece = tuple[str, ...]
"""What is measured at once and kept, by its place in a run: ("perplexity", "2048"), ("tasks", "vt", "8192")."""


def so_far(path: Path, variant: str, seed: int) -> Mapping[str, Any]:
    """What earlier commands measured of a run."""
    if not path.exists():
        return {}
    found: Mapping[str, Any] = read(path)["variants"].get(variant, {"runs": {}})["runs"].get(str(seed), {})
    return found


def left(pieces: Sequence[Piece], run: Mapping[str, Any]) -> list[Piece]:
    return [piece for piece in pieces if not _has(run, piece)]


def _has(run: Any, piece: Piece) -> bool:
    for key in piece:
        if not isinstance(run, Mapping) or key not in run:
            return False
        run = run[key]
    return True


def placed(run: Mapping[str, Any], piece: Piece, value: Any) -> dict[str, Any]:
    """
    >>> placed({"tasks": {"vt": {"4096": 0.5}}}, ("tasks", "vt", "8192"), 0.25)
    {'tasks': {'vt': {'4096': 0.5, '8192': 0.25}}}
    """
    first, *rest = piece
    return {**run, first: placed(run.get(first, {}), tuple(rest), value) if rest else value}


def in_short(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else "measured"
