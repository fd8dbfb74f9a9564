"""What a result file says, whatever the experiment."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

Results = Mapping[str, Any]
COMMA_BETWEEN_OPTIONS = r",(?![^\[]*\])"
"""In a variant's name; a list has commas of its own."""
ADDED = " + "
"""Before what a variant adds to a scheme without being an option of it."""
LARGEST = 1e200
"""What lies beyond counts as infinite: sums of such numbers, and the ends of an axis, would be."""


def finite_or_inf(value: float | None) -> float:
    """JSON has no infinity; a result file says null."""
    return math.inf if value is None or value > LARGEST else value


def runs_of(results: Results, variant: str) -> list[Results]:
    """The finished runs of a variant, one a seed."""
    return list(results["variants"][variant]["runs"].values())


def parts_of(results: Results, variant: str, name: str) -> list[Results]:
    """An optional part of every run that has it."""
    return [run[name] for run in runs_of(results, variant) if run.get(name)]


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
    >>> scheme_and_options("content:competition=1 + memory")
    ('content', {'competition': '1'})
    """
    scheme, _, rest = variant.partition(ADDED)[0].partition(":")
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
