"""Reading a result file: is it one, and what does it say?"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from contentrope.errors import InputError
from contentrope.reports.checked import check_results
from contentrope.reports.measured import Measured, mean_and_spread
from contentrope.results import read_json

Results = Mapping[str, Any]
COMMA_BETWEEN_OPTIONS = r",(?![^\[]*\])"
"""In a variant's name; a list has commas of its own."""
LARGEST = 1e200
"""What lies beyond counts as infinite: sums of such numbers, and the ends of an axis, would be."""


def read_results(path: str | Path) -> dict[str, Any]:
    """Read the result file of a context-growth experiment; a damaged or foreign one is refused."""
    results = read_json(path)
    try:
        check_results(results)
    except InputError as error:
        raise InputError(f"{path} is not a result file of a context-growth experiment: {error}") from error
    return results


def finite_or_inf(value: float | None) -> float:
    """JSON has no infinity; a result file says null."""
    return math.inf if value is None or value > LARGEST else value


def runs_of(results: Results, variant: str) -> list[Results]:
    """The finished runs of a variant, one a seed."""
    return list(results["variants"][variant]["runs"].values())


def variants_of(results: Results) -> list[str]:
    """The variants with at least one finished run, in the order they were asked for, not that of finishing."""
    asked = [name for name in results["config"].get("variants") or () if name in results["variants"]]
    return [name for name in dict.fromkeys([*asked, *results["variants"]]) if runs_of(results, name)]


def seeds_of(results: Results) -> list[int]:
    """The seeds asked for: a list of them, or how many from zero on."""
    seeds = results["config"].get("seeds") or ()
    return list(range(seeds)) if isinstance(seeds, int) else list(seeds)


def all_runs(results: Results) -> Iterator[Results]:
    for variant in results["variants"]:
        yield from runs_of(results, variant)


def lengths_of(results: Results) -> list[int]:
    """Every length that some run was evaluated at."""
    return sorted({int(length) for run in all_runs(results) for length in run["perplexity"]})


def lengths_to_compare(results: Results) -> list[int]:
    """The lengths that score the same text; windows read once, with the first seed alone, score another."""
    once = setting(results, "once") or ()
    return [length for length in lengths_of(results) if length not in once]


def training_length(results: Results) -> int | None:
    """Characters per training window; the shortest evaluation length if the settings do not say."""
    length = setting(results, "length", "train_length", "training_length")
    return length if isinstance(length, int) else min(lengths_of(results), default=None)


def curve(results: Results, variant: str) -> dict[int, Measured]:
    """Perplexity by length, over the seeds that have it."""
    found: dict[int, list[float]] = {}
    for run in runs_of(results, variant):
        for length, value in run["perplexity"].items():
            found.setdefault(int(length), []).append(finite_or_inf(value))
    return {length: mean_and_spread(found[length]) for length in sorted(found)}


def setting(results: Results, *names: str) -> Any:
    """A setting by any of its names: of the experiment, its nested parts, or the model of the first run."""
    model: Results = next((run["model"] for run in all_runs(results) if isinstance(run.get("model"), Mapping)), {})
    for part in (*_with_parts(results["config"]), model):
        for name in names:
            if part.get(name) is not None:
                return part[name]
    return None


def _with_parts(config: Results) -> Iterator[Results]:
    """The settings themselves, then those nested in them, training first: "length" means its windows."""
    yield config
    parts = [(name, part) for name, part in config.items() if isinstance(part, Mapping)]
    for _, part in sorted(parts, key=lambda item: "train" not in item[0]):
        yield from _with_parts(part)


def scheme_and_options(variant: str) -> tuple[str, dict[str, str]]:
    """Split a variant's name.

    >>> scheme_and_options("rope:frequencies=model_wide")
    ('rope', {'frequencies': 'model_wide'})
    >>> scheme_and_options("content:anchors=[0,1],noise=1")
    ('content', {'anchors': '[0,1]', 'noise': '1'})
    """
    scheme, _, rest = variant.partition(":")
    options = (item.partition("=") for item in re.split(COMMA_BETWEEN_OPTIONS, rest) if item)
    return scheme, {name: value for name, _, value in options}


def frequency_layout(results: Results, variant: str) -> str | None:
    """Per-head or model-wide frequencies; None for a variant with any other option."""
    _, options = scheme_and_options(variant)
    if set(options) - {"frequencies"}:
        return None
    # The model that ran knows best: an experiment may set the layout for all its variants.
    for run in runs_of(results, variant):
        rotary = (run.get("model") or {}).get("rotary") or {}
        if "frequencies" in rotary:
            return str(rotary["frequencies"])
    return options.get("frequencies", "per_head")
