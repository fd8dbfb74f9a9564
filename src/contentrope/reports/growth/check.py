"""Is it a result of the context-growth experiment?"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from contentrope.errors import InputError
from contentrope.reports.checks import (
    check_costs,
    check_list,
    check_perplexities,
    is_count,
    is_list_of,
    is_positive_count,
    require_object,
)


def check_config(config: Mapping[str, Any]) -> None:
    check_list(config, "once", int)


def check_run(where: str, run: Mapping[str, Any]) -> None:
    check_perplexities(where, run.get("perplexity"))
    for length in run["perplexity"]:
        if not is_positive_count(length):
            raise InputError(f"perplexity in {where} has the length {length!r}, which is not a number from 1 on")
    check_costs(where, run)
    if run.get("by_position") is not None:
        _check_positions(f"by_position in {where}", run["by_position"])
    if run.get("distant") is not None:
        _check_distant(f"distant in {where}", run["distant"])


def _check_positions(where: str, positions: Any) -> None:
    require_object(where, positions)
    edges, values = positions.get("edges"), positions.get("perplexity")
    rising = is_list_of(int, edges) and edges and edges[0] >= 0 and all(a < b for a, b in pairwise(edges))
    if not rising or not isinstance(values, list) or len(edges) != len(values) + 1 or not values:
        raise InputError(f"{where} needs rising edges, and one perplexity between every two of them")
    check_perplexities(where, dict(enumerate(values)))


def _check_distant(where: str, distant: Any) -> None:
    require_object(where, distant)
    check_perplexities(where, distant.get("perplexity"))
    missing = [name for name in ("length", "near", "scored") if not is_count(distant.get(name))]
    if missing or "as written" not in distant["perplexity"]:
        raise InputError(f"{where} needs length, near, scored, and the perplexity of the text as written")
