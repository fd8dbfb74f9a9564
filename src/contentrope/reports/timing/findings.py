"""What the numbers say, in plain sentences made by rules. Each rule can come out either way, or say nothing."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from contentrope.reports.measured import number
from contentrope.reports.read import Results, variants_of
from contentrope.reports.timing.accelerated import accelerated
from contentrope.reports.timing.paper import REPEATED, printed_overhead, target
from contentrope.reports.timing.read import (
    BASELINE,
    accelerations_of,
    failures,
    length_of,
    measured,
    memory_ratio,
    overheads,
    schemes_of,
    size_of,
    timed_on_gpu,
)
from contentrope.reports.timing.tables import percent, reaches
from contentrope.reports.timing.words import WORDS, sentence
from contentrope.reports.words import listed

NOISY = 1.0
"""Percentage points between the overheads of medians and of means; more is noise."""
MORE_MEMORY = 0.005
"""Less than this share of the baseline's peak is no difference, as printed."""


def findings(results: Results) -> list[str]:
    """One sentence per finding, most important first."""
    rules = (_targets, _paper, accelerated, _lengths, _memory, _noise, _missing)
    return [said for rule in rules for said in rule(results)]


def _targets(results: Results) -> list[str]:
    """Which rows stay within the target."""
    said = []
    for acceleration in accelerations_of(results):
        for scheme in schemes_of(results):
            found = overheads(results, acceleration, scheme)
            aims = {row: most for row in found if (most := target(results, row)) is not None}
            words = {row: f"{row} ({percent(found[row].mean)}, at most {percent(most)})" for row, most in aims.items()}
            within = [row for row, most in aims.items() if reaches(found[row], most)]
            begin = f"{sentence(acceleration)}, {scheme}"
            said += _either(begin, "meets the target", "misses the target", within, words)
    return said


def _paper(results: Results) -> list[str]:
    """Where the scheme that the paper timed costs less than there."""
    said = []
    for acceleration in accelerations_of(results):
        found = overheads(results, acceleration, REPEATED)
        rows = [row for row in found if timed_on_gpu(results, row)]  # what a CPU takes says nothing about a T4
        printed = {row: theirs for row in rows if (theirs := printed_overhead(row)) is not None}
        words = {row: f"{row} ({percent(found[row].mean)}, {percent(theirs)} there)" for row, theirs in printed.items()}
        below = [row for row, theirs in printed.items() if round(found[row].mean, 1) < theirs]
        begin = f"{sentence(acceleration)}, the overhead of {REPEATED}"
        said += _either(begin, "is below the paper's", "is not below the paper's", below, words)
    return said


def _either(begin: str, good: str, bad: str, good_rows: list[str], words: Mapping[str, str]) -> list[str]:
    """One sentence: where it is good, and where not."""
    rows = {good: good_rows, bad: [row for row in words if row not in good_rows]}
    parts = [f"{verb} at {listed([words[row] for row in part])}" for verb, part in rows.items() if part]
    return [f"{begin} {'; it '.join(parts)}."] if parts else []


def _lengths(results: Results) -> list[str]:
    """How the overhead changes with the length of the sequences."""
    said = []
    sizes = dict.fromkeys(size_of(row) for row in variants_of(results))
    for acceleration in accelerations_of(results):
        for scheme in schemes_of(results):
            found = overheads(results, acceleration, scheme)
            for size in sizes:
                lengths = {
                    n: found[row].mean for row in found if size_of(row) == size and (n := length_of(results, row))
                }
                ordered = [(length, lengths[length]) for length in sorted(lengths)]
                if len(ordered) > 1:
                    steps = ", ".join(f"{percent(value)} at {length:,}" for length, value in ordered)
                    change = _direction([round(value, 1) for _, value in ordered])
                    begin = f"{sentence(acceleration)}, the overhead of {scheme} at {size}"
                    said.append(f"{begin} {change} with the length of the sequences: {steps}.")
    return said


def _direction(values: list[float]) -> str:
    if all(before >= after for before, after in pairwise(values)) and values[0] > values[-1]:
        return "falls"
    if all(before <= after for before, after in pairwise(values)) and values[0] < values[-1]:
        return "grows"
    return "neither grows nor falls steadily"


def _memory(results: Results) -> list[str]:
    """How much more memory a scheme needs at most."""
    said = []
    for scheme in schemes_of(results):
        ratios = {
            f"{row}, {WORDS[acceleration]}": ratio
            for acceleration in accelerations_of(results)
            for row in variants_of(results)
            if (ratio := memory_ratio(results, row, acceleration, scheme)) is not None
        }
        if ratios:
            most = max(ratios, key=lambda where: ratios[where])
            more = ratios[most] >= 1 + MORE_MEMORY
            worst = f"up to {number(ratios[most])} times the peak memory of {BASELINE} ({most})"
            none = f"nowhere more peak memory than {BASELINE} (at most {number(ratios[most])} times)"
            said.append(f"{scheme} needs {worst if more else none}.")
    return said


def _noise(results: Results) -> list[str]:
    """Where the few steps tell different overheads by median and by mean."""
    noisy = []
    for acceleration in accelerations_of(results):
        for scheme in schemes_of(results):
            for row, by_median in overheads(results, acceleration, scheme).items():
                by_mean = measured(results, row, acceleration, scheme, "overhead_of_means_percent")
                if by_mean and abs(by_mean.mean - by_median.mean) > NOISY:
                    both = f"{percent(by_median.mean)} by median, {percent(by_mean.mean)} by mean"
                    noisy.append(f"{scheme} at {row}, {WORDS[acceleration]} ({both})")
    return [f"Noisy, not to be relied on to a point: {listed(noisy)}."] if noisy else []


def _missing(results: Results) -> list[str]:
    found = failures(results)
    told = [f"{at.scheme} at {at.row}, {WORDS[at.acceleration]} ({at.reason.rstrip('.')})" for at in found]
    return [f"Not timed: {listed(told)}."] if told else []
