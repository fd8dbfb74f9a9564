"""Numbers measured with several seeds, and how they are written."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """The mean over seeds, the sample standard deviation (None if there is none), and how many seeds."""

    mean: float
    spread: float | None
    count: int

    @property
    def text(self) -> str:
        return self.printed()

    def printed(self, decimals: int | None = None) -> str:
        """With so many decimals, or as many as the size of the number asks for."""
        if self.spread is None:
            return number(self.mean, decimals)
        spread = number(self.spread, decimals_for(self.mean) if decimals is None else decimals)
        return f"{number(self.mean, decimals)} ± {spread}"

    def differs_from(self, other: Measured) -> bool:
        """Whether the gap is at least the larger spread over seeds; without both spreads nobody can tell."""
        if self.spread is None or other.spread is None:
            return True
        return abs(self.mean - other.mean) >= max(self.spread, other.spread)


def mean_and_spread(values: Sequence[float]) -> Measured:
    """Mean and sample standard deviation.

    >>> mean_and_spread([4.0, 5.0]).text
    '4.50 ± 0.71'
    >>> mean_and_spread([4.0]).text
    '4.00'
    """
    if not all(map(math.isfinite, values)):
        return Measured(math.inf, None, len(values))
    spread = statistics.stdev(values) if len(values) > 1 else None
    return Measured(statistics.fmean(values), spread, len(values))


def decimals_for(value: float) -> int:
    """Two decimals, fewer where the number is large.

    >>> decimals_for(4.4), decimals_for(412.0), decimals_for(5321.0)
    (2, 1, 0)
    """
    size = abs(value)
    return 2 if size < 100 else 1 if size < 1000 else 0


def number(value: float, decimals: int | None = None) -> str:
    """A number as it is printed.

    >>> number(4.404), number(5321.4), number(math.inf), number(2.5e9)
    ('4.40', '5,321', 'inf', '2.5e+09')
    """
    if not math.isfinite(value):
        return "inf"
    if abs(value) >= 1e6:
        return f"{value:.1e}"
    return f"{value:,.{decimals_for(value) if decimals is None else decimals}f}"
