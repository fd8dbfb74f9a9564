"""What ``contentrope evaluate`` prints; ``unit`` is what lengths are counted in, characters or tokens."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from rich.console import Console

from contentrope.cli.tables import print_table
from contentrope.evaluation import shown


def show_perplexity(console: Console, unit: str, found: Mapping[str, Any]) -> None:
    values = found["perplexity"]
    head = [unit, *(f"{int(length):,}" for length in values)]
    print_table(console, f"Perplexity by {unit} read", head, [["perplexity", *map(shown, values.values())]])


def show_distant(console: Console, unit: str, recent: int, found: Mapping[str, Any]) -> None:
    if "by_position" in found:
        positions = found["by_position"]
        places = [f"{first:,} to {after - 1:,}" for first, after in pairwise(positions["edges"])]
        rows = [[place, shown(value)] for place, value in zip(places, positions["perplexity"], strict=True)]
        title = f"Perplexity by position in windows of {positions['length']:,} {unit}"
        print_table(console, title, ["position", "perplexity"], rows)
    if "distant" in found:
        changed = found["distant"]
        rows = [[condition, shown(value)] for condition, value in changed["perplexity"].items()]
        title = (
            f"Perplexity of the last {recent:,} {unit} or a little more of {changed['windows']:,} windows of "
            f"{changed['length']:,}, by what stands before them"
        )
        print_table(console, title, ["text before", "perplexity"], rows)


def show_tasks(console: Console, examples: int, accuracy: Mapping[str, Mapping[str, float]]) -> None:
    """``accuracy``: by task and length. What was not measured is left out."""
    lengths = list(dict.fromkeys(length for by_length in accuracy.values() for length in by_length))
    rows = [
        [task, *(f"{by_length[length]:.2f}" if length in by_length else "-" for length in lengths)]
        for task, by_length in accuracy.items()
    ]
    whole = [length for length in lengths if all(length in by_length for by_length in accuracy.values())]
    if len(accuracy) > 1:
        means = {length: sum(by[length] for by in accuracy.values()) / len(accuracy) for length in whole}
        rows.append(["mean", *(f"{means[length]:.2f}" if length in means else "-" for length in lengths)])
    title = f"Accuracy by task and tokens read, of {examples} examples each, from 0 to 1"
    print_table(console, title, ["tokens", *(f"{int(length):,}" for length in lengths)], rows)
