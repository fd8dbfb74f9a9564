"""How long a tile takes: many short launches in a row, few long ones, the best first."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("triton")

from contentrope.kernels import tuning


@pytest.mark.parametrize(("takes", "often"), [(0.01, 10), (0.1, 10), (0.24, 4), (0.9, 1), (30.0, 1)])
def test_short_launches_are_timed_many_at_a_time(takes: float, often: int, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[str] = []
    rounds: list[int] = []

    def timed(launch: Callable[[], object], count: int) -> float:
        rounds.append(count)
        return takes * (1 + 0.1 * (len(rounds) % 3))  # a processor that disturbs some of them

    monkeypatch.setattr(tuning, "_round", timed)
    best, median, worst = tuning.milliseconds(lambda: launched.append("compiled"), quantiles=(0.5, 0.2, 0.8))
    assert launched == ["compiled"]
    assert rounds[0] == 1
    assert set(rounds[1:]) <= {often, max(1, often - 1)}  # what the first round took decides
    assert best == pytest.approx(takes)
    assert best <= median <= worst
