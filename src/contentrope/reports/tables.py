"""Tables for reports and README: rows of cells, and how they look in Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


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


def best_of(found: Mapping[str, float], printed: Callable[[float], str], *, most: bool = False) -> list[str]:
    """The names with the least (or most), all that print the same; none where that is every one of them.

    >>> best_of({"a": 4.401, "b": 4.402, "c": 4.5}, "{:.2f}".format)
    ['a', 'b']
    """
    values = [value for value in found.values() if math.isfinite(value)]
    if not values:
        return []
    best = printed(max(values) if most else min(values))
    names = [name for name, value in found.items() if printed(value) == best]
    return names if len(names) < len(found) else []
