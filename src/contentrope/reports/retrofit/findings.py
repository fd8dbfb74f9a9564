"""What the numbers say, in plain sentences made by rules. Each rule can come out either way, or say nothing."""

from __future__ import annotations

import math

from contentrope.reports.growth.curves import lengths_of, training_length
from contentrope.reports.growth.trends import trends
from contentrope.reports.read import Results, scheme_and_options, variants_of
from contentrope.reports.retrofit.described import RESCALINGS
from contentrope.reports.retrofit.tables import against_original, means_at
from contentrope.reports.words import listed, span

TARGET = 2.0
"""Percent that a conversion may be above the original's perplexity at its training length."""


def findings(results: Results) -> list[str]:
    """One sentence per finding, most important first."""
    return [sentence for rule in (_near_the_original, _below_rescaling, trends) for sentence in rule(results)]


def _near_the_original(results: Results) -> list[str]:
    longest, start = max(lengths_of(results), default=0), training_length(results)
    found = {name: against_original(results, name, longest) for name in _converted(results)}
    reached = [name for name, value in found.items() if value is not None and value.mean <= TARGET]
    if not any(found.values()) or start is None or longest <= start:
        return []
    claim = f"at {longest:,} at most {TARGET:g}% above the original's perplexity at {start:,}"
    return [f"Reads {claim}: {listed(reached)}." if reached else f"No conversion to content addresses reads {claim}."]


def _below_rescaling(results: Results) -> list[str]:
    """Beyond the training length: where conversions are below every rescaling of frequencies."""
    beyond = [length for length in lengths_of(results) if length > (training_length(results) or 0)]
    said = []
    for name in _converted(results):
        below = [length for length in beyond if _is_below(results, name, length)]
        compared = [length for length in beyond if _rescaled(results, length) and name in means_at(results, length)]
        if compared:
            where = span(below, beyond) if below else "nowhere"
            said.append(f"{name} is below every rescaling {where}{' beyond the training length' if not below else ''}.")
    return said


def _is_below(results: Results, name: str, length: int) -> bool:
    ours, theirs = means_at(results, length).get(name, math.inf), _rescaled(results, length)
    return bool(theirs) and ours < min(theirs)


def _rescaled(results: Results, length: int) -> list[float]:
    return [v for name, v in means_at(results, length).items() if scheme_and_options(name)[0] in RESCALINGS]


def _converted(results: Results) -> list[str]:
    return [name for name in variants_of(results) if scheme_and_options(name)[0] == "content"]
