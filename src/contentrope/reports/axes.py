"""Ticks and limits that a reader can use: plain numbers on logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LADDERS = ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 5), (1,))
MOST_TICKS = 9


def number_ticks(low: float, high: float) -> list[float]:
    """Round numbers between ``low`` and ``high``, few enough to read.

    >>> number_ticks(4.2, 4.95)
    [4.2, 4.4, 4.6, 4.8]
    >>> number_ticks(4.0, 80.0)
    [5.0, 10.0, 20.0, 50.0]
    """
    if high < 2 * low:
        return _even_ticks(low, high)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for ladder in _LADDERS:
        ticks = [step * 10.0**decade for decade in decades for step in ladder if low <= step * 10.0**decade <= high]
        if len(ticks) <= MOST_TICKS:
            break
    return ticks[:: -(-len(ticks) // MOST_TICKS)]


def _even_ticks(low: float, high: float) -> list[float]:
    rough = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= rough)
    return [round(place * step, 12) for place in range(math.ceil(low / step), math.floor(high / step) + 1)]


def legible(lengths: Sequence[int]) -> list[int]:
    """The lengths whose labels have room beside each other on a logarithmic axis.

    >>> legible([256, 512, 1024]), legible([1000, 1001, 4000])
    ([256, 512, 1024], [1000, 4000])
    """
    room = (lengths[-1] / lengths[0]) ** (1 / 12)
    kept = [lengths[0]]
    for length in lengths[1:]:
        if length >= room * kept[-1]:
            kept.append(length)
    return kept


def set_ticks(axes: Axes, lengths: Sequence[int], low: float, high: float, begin: float = math.inf) -> None:
    """Logarithmic axes a little beyond the lengths (or from ``begin`` on) and beyond ``low`` and ``high``."""
    margin = max((high / low) ** 0.06, 1.01)
    low, high = low / margin, high * margin
    left, right = min(begin, lengths[0]), lengths[-1]
    wide = max((right / left) ** 0.04, 1.05)
    axes.set(xscale="log", yscale="log", xlim=(left / wide, right * wide), ylim=(low, high))
    ticks = number_ticks(low, high)
    places = legible(lengths)
    axes.set_xticks(places, [f"{length:,}" for length in places])
    axes.set_yticks(ticks, [f"{tick:,.10g}" for tick in ticks])
    axes.minorticks_off()
