"""Other tiles than the kernels would try: fewer, as each takes seconds to compile, or a GPU's in the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from contentrope.kernels import ops, tuning
from contentrope.kernels.tuning import Tile

Choose = Callable[[str, list[Tile]], list[Tile]]
"""Of a kernel's name and what would be tried, what is tried."""


@contextmanager
def tried(choose: Choose) -> Iterator[None]:
    """Nothing that was chosen before is used, nor anything afterwards that is chosen here."""
    everything = tuning.tiles_for
    with _changed("tiles_for", lambda kernel, width, precision: choose(kernel, everything(kernel, width, precision))):
        yield


@contextmanager
def interpreted_with(**tiles: Tile) -> Iterator[None]:
    """By kernel, the tiles with which Triton's interpreter runs them for a while."""
    with _changed("INTERPRETED", tiles):
        yield


@contextmanager
def _changed(name: str, value: Any) -> Iterator[None]:
    before = getattr(tuning, name)
    setattr(tuning, name, value)
    _forget()
    try:
        yield
    finally:
        setattr(tuning, name, before)
        _forget()


def _forget() -> None:
    tuning.tuned.cache_clear()
    ops._found.clear()


def first_and_smallest(kernel: str, tiles: list[Tile]) -> list[Tile]:
    """The first does not fit everywhere."""
    return [tiles[0], tiles[-1]]
