"""Tables for reports and README: rows of cells, and how they look in Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from contentrope.reports.measured import mean_and_spread, number
from contentrope.reports.paper import paper_curve
from contentrope.reports.read import Results, curve, lengths_of, runs_of, variants_of

__all__ = ["Cell", "Table", "length_table", "lowest", "markdown_table", "markdown_text", "mean_and_spread"]


@dataclass(frozen=True)
class Cell:
    text: str
    style: Literal["plain", "strong", "emphasis"] = "plain"


@dataclass(frozen=True)
class Table:
    """A table whose first column names the rows."""

    head: list[str]
    rows: list[list[Cell]]

    def markdown(self) -> str:
        return markdown_table(list(map(markdown_text, self.head)), [list(map(_markdown, row)) for row in self.rows])


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of cells that are Markdown already.

    >>> print(markdown_table(["", "256"], [["content", "4.40"]]))
    |  | 256 |
    | --- | --- |
    | content | 4.40 |
    """
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def markdown_text(text: str) -> str:
    """Plain text as Markdown: nothing in it becomes a tag, a link, a column or emphasis.

    >>> markdown_text("a|b <i>")
    'a\\\\|b &lt;i>'
    """
    for sign in "\\`*[|":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.replace("&", "&amp;").replace("<", "&lt;").split())


def _markdown(cell: Cell) -> str:
    around = {"plain": "", "strong": "**", "emphasis": "*"}[cell.style] if cell.text else ""
    return f"{around}{markdown_text(cell.text)}{around}"


def length_table(results: Results, variants: Sequence[str] | None = None, *, paper: bool = True) -> Table:
    """Perplexity by variant (down) and length (across), the lowest of each column in bold, the paper's below ours."""
    shown = variants_of(results) if variants is None else list(variants)
    lengths = [length for length in lengths_of(results) if any(length in curve(results, name) for name in shown)]
    counts = {len(runs_of(results, name)) for name in shown}
    best = {length: lowest(results, shown, length) for length in lengths}
    rows = []
    for name in shown:
        seeds = [Cell(str(len(runs_of(results, name))))] if len(counts) > 1 else []
        rows.append([Cell(name), *seeds, *(_length_cell(results, name, length, best[length]) for length in lengths)])
        printed = paper_curve(results, name) if paper else {}
        if set(printed) & set(lengths):
            theirs = [Cell(number(printed[n]) if n in printed else "", "emphasis") for n in lengths]
            rows.append([Cell("paper", "emphasis"), *(Cell("") for _ in seeds), *theirs])
    return Table(["characters read", *(["seeds"] if len(counts) > 1 else []), *(f"{n:,}" for n in lengths)], rows)


def _length_cell(results: Results, variant: str, length: int, best: Sequence[str]) -> Cell:
    found = curve(results, variant).get(length)
    if found is None:
        return Cell("")
    # One value shows itself by its missing spread; some but not all seeds would not.
    partial = 1 < found.count < len(runs_of(results, variant))
    return Cell(found.text + (f" (n={found.count})" if partial else ""), "strong" if variant in best else "plain")


def lowest(results: Results, variants: Sequence[str], length: int) -> list[str]:
    """The variants with the lowest mean, all that print the same; none where that is every one of them."""
    found = {name: curve(results, name)[length].mean for name in variants if length in curve(results, name)}
    least = min(found.values(), default=math.inf)
    if not math.isfinite(least):
        return []
    best = [name for name, mean in found.items() if number(mean) == number(least)]
    return best if len(best) < len(found) else []
