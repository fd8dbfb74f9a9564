"""Whether counts look like equal chances."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any


def assert_equally_likely(counts: Counter[Any], outcomes: Sequence[Hashable]) -> None:
    assert_likely(counts, {outcome: 1 / len(outcomes) for outcome in outcomes})


def assert_likely(counts: Counter[Any], chances: dict[Any, float]) -> None:
    """The chi-square statistic within five standard deviations of its mean, and no outcome besides these."""
    assert set(counts) <= set(chances)
    expected = {outcome: counts.total() * chance for outcome, chance in chances.items()}
    assert min(expected.values()) >= 5, "too few draws to tell"
    found = sum((counts[outcome] - mean) ** 2 / mean for outcome, mean in expected.items())
    freedom = len(chances) - 1
    assert abs(found - freedom) < 5 * math.sqrt(2 * freedom), (found, freedom, counts)
