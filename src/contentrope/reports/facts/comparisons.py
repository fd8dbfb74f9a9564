"""Findings that compare: with the paper, with and without the exponent, seen with unseen names."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from contentrope.reports.facts.described import facts_per_example
from contentrope.reports.facts.exponents import by_exponent
from contentrope.reports.facts.paper import CONTENT, TABLE, asks_the_same, trained_alike
from contentrope.reports.facts.rows import CONDITIONS, HIT, KINDS, row_of, rows_in_words, scores
from contentrope.reports.measured import Measured
from contentrope.reports.read import ADDED, Results, scheme_and_options, variants_of
from contentrope.reports.words import listed

NOTICEABLE = 0.01
"""Of hit@5; a smaller difference between seen and unseen names is none."""
EXPONENT = ("competition", "learn_competition")
"""The options that set it."""


def against_the_paper(results: Results) -> list[str]:
    """For each variant with content addresses: in how many rows it reaches the paper's content model, and where not."""
    if not asks_the_same(results):
        return []
    theirs, said = TABLE[HIT.key][CONTENT], []
    for name, ours in _content(results).items():
        below = [row for row, value in ours.items() if round(value.mean, 3) < theirs[row]]
        reached = f"{len(ours) - len(below)} of {len(ours)}" if below else f"all {len(ours)}"
        gaps = "; ".join(f"{row} ({HIT.printed(ours[row].mean)} against {theirs[row]:.3f})" for row in below)
        rest = f", below it in {gaps}" if below else ""
        said.append(f"{name} is at or above the paper's content in {reached} rows{_training(results)}{rest}.")
    return said


def _content(results: Results) -> dict[str, Mapping[str, Measured]]:
    """Hit@5 by row of all that have content addresses, also under exponents they were not trained with."""
    found: dict[str, Mapping[str, Measured]] = {}
    for name in variants_of(results):
        if scheme_and_options(name)[0] == CONTENT and (ours := scores(results, name)):
            found[name] = ours
            others = by_exponent(results, name)
            found |= {f"{name} under exponent {exponent:g}": rows for exponent, rows in others.items()}
    return found


def _training(results: Results) -> str:
    return "" if trained_alike(results) else f" (trained on {facts_per_example(results)}, the paper's on one)"


def exponent(results: Results) -> list[str]:
    """What the exponent changes, for each variant that is there with and without it."""
    said = []
    for name in variants_of(results):
        plain = without_exponent(name)
        if plain != name and plain in variants_of(results):
            said.append(_change(plain, scores(results, plain), name, scores(results, name)))
    return list(filter(None, said))


def without_exponent(variant: str) -> str:
    """The same variant without the exponent.

    >>> without_exponent("content:competition=1,noise=2 + memory")
    'content:noise=2 + memory'
    """
    scheme, options = scheme_and_options(variant)
    rest = ",".join(f"{name}={value}" for name, value in options.items() if name not in EXPONENT)
    return "".join((f"{scheme}:{rest}" if rest else scheme, *variant.partition(ADDED)[1:]))


def _change(plain: str, before: Mapping[str, Measured], name: str, after: Mapping[str, Measured]) -> str:
    rows = [row for row in before if row in after]
    if not rows:
        return ""
    change = fmean(after[row].mean - before[row].mean for row in rows)
    clear = [row for row in rows if after[row].differs_from(before[row])]
    more = [row for row in clear if round(after[row].mean, 3) > round(before[row].mean, 3)]
    less = [row for row in clear if round(after[row].mean, 3) < round(before[row].mean, 3)]
    parts = [f"{word} in {rows_in_words(found)}" for word, found in (("higher", more), ("lower", less)) if found]
    alike = len(rows) - len(more) - len(less)
    effect = ", ".join([*parts, *([f"not clearly different in {alike}"] if alike else [])])
    by = f"by {change:+.3f} in the mean of {len(rows)} rows"
    return f"The exponent changes hit@5 from {plain} to {name} {by}: {effect}."


def unseen_names(results: Results) -> list[str]:
    """What names that training has not seen cost, in the mean over conditions and kinds."""
    worse, alike, better = list[str](), list[str](), list[str]()
    for name in variants_of(results):
        found = scores(results, name)
        pairs = [(row_of(*parts, "train"), row_of(*parts, "test")) for parts in _CONDITIONS_AND_KINDS]
        gaps = [found[seen].mean - found[unseen].mean for seen, unseen in pairs if seen in found and unseen in found]
        if gaps:
            gap = fmean(gaps)
            place = alike if abs(gap) < NOTICEABLE else worse if gap > 0 else better
            place.append(name if place is alike else f"{name} ({-gap:+.3f})")
    words = (
        (worse, "Unseen names lower hit@5, in the mean over conditions, of"),
        (better, "Unseen names raise hit@5, in the mean over conditions, of"),
        (alike, f"Unseen names change hit@5 by less than {NOTICEABLE} in the mean over conditions:"),
    )
    return [f"{begin} {listed(names)}." for names, begin in words if names]


_CONDITIONS_AND_KINDS = [(condition, kind) for condition in CONDITIONS for kind in KINDS]
