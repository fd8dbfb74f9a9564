"""Tables of numbers over seeds: mean ± standard deviation, the best in bold, the paper's in italics."""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

DASH = "–"
"""For a number that is missing: JSON has no infinity, a result file says null."""
LARGEST = 1e200
"""What lies beyond counts as missing: its mean, or the end of an axis, would be infinite."""
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Cell:
    text: str
    style: Literal["plain", "best", "paper"] = "plain"


@dataclass(frozen=True)
class Table:
    """Rows of cells, the first of a row being its name; a report puts tables and pictures of one title together."""

    head: list[str]
    rows: list[list[Cell]]
    title: str = ""
    caption: str = ""

    def text(self) -> str:
        """For a terminal: columns aligned, a star behind the best."""
        stars = [[cell.text + "*" * (cell.style == "best") for cell in row] for row in self.rows]
        lines = [self.head, *stars]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(map(_padded, line, widths, range(len(line)))).rstrip() for line in lines)


def _padded(text: str, width: int, column: int) -> str:
    return text.rjust(width) if column else text.ljust(width)


def by_column(rows: Sequence[Mapping[str, Cell | str]], title: str = "", caption: str = "") -> Table:
    """A table of rows given by column; a column without a number is left out.

    >>> by_column([{"": "content", "loss": "1.25", "GiB": "–"}]).head
    ['', 'loss']
    """
    cells = [{head: cell if isinstance(cell, Cell) else Cell(cell) for head, cell in row.items()} for row in rows]
    names = list(dict.fromkeys(name for row in cells for name in row))
    filled = [any(name in row and row[name].text not in ("", DASH) for row in cells) for name in names]
    head = [name for place, name in enumerate(names) if filled[place] or place == 0]
    return Table(head, [[row.get(name, Cell("")) for name in head] for row in cells], title, caption)


@dataclass(frozen=True)
class Measured:
    """The mean over seeds (nan where one has no number), the sample standard deviation, and how many of how many."""

    mean: float
    std: float | None
    count: int
    of: int

    def text(self, decimals: int | None = None) -> str:
        """With so many decimals, or as many as the size of the mean asks for.

        >>> measured([4.0, 5.0]).text(), measured([4.0]).text(3), measured([4.0, None]).text()
        ('4.50 ± 0.71', '4.000', '–')
        """
        places = _decimals_for(self.mean) if decimals is None else decimals
        spread = f" ± {number(self.std, places)}" if self.std is not None else ""
        # One value shows itself by its missing spread; some but not all seeds would not.
        return number(self.mean, decimals) + spread + (f" (n={self.count})" if 1 < self.count < self.of else "")


def measured(values: Sequence[float | None], of: int | None = None) -> Measured:
    """What the seeds say together; ``of`` is how many there are, where some lack the number."""
    of = len(values) if of is None else of
    found = [value for value in values if value is not None and abs(value) < LARGEST]
    if len(found) < len(values) or not found:
        return Measured(math.nan, None, len(values), of)
    return Measured(statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else None, len(found), of)


def number(value: float, decimals: int | None = None) -> str:
    """A number as it is printed.

    >>> number(4.404), number(412.0), number(5321.4), number(math.nan), number(2.5e9), number(2.5e9, 0)
    ('4.40', '412.0', '5,321', '–', '2.5e+09', '2,500,000,000')
    """
    if not math.isfinite(value):
        return DASH
    if abs(value) >= 1e6 and decimals != 0:  # a count is told in full
        return f"{value:.1e}"
    return f"{value:,.{_decimals_for(value) if decimals is None else decimals}f}"


def _decimals_for(value: float) -> int:
    return 2 if not abs(value) >= 100 else 1 if abs(value) < 1000 else 0


def percent(found: Measured | None, decimals: int | None = 1, minus: str = "−") -> str:
    """A change with its sign.

    >>> percent(measured([10.26])), percent(measured([-0.25, -0.45])), percent(measured([-0.01]))
    ('+10.3%', '−0.3% ± 0.1%', '0.0%')
    """
    if found is None or not math.isfinite(found.mean):
        return "" if found is None else DASH
    size = number(abs(found.mean), decimals)
    sign = "" if size == number(0, decimals) else "+" if found.mean > 0 else minus
    return f"{sign}{size}%" + (f" ± {number(found.std, decimals)}%" if found.std is not None else "")


def compared(found: Mapping[Key, Measured], *, most: bool = False, decimals: int | None = None) -> dict[Key, Cell]:
    """Cells of numbers to compare: the least (or most) is best, with all that print the same, unless that is all."""
    printed = {key: number(value.mean, decimals) for key, value in found.items()}
    means = [value.mean for value in found.values() if math.isfinite(value.mean)]
    best = number(max(means) if most else min(means), decimals) if means else None
    if set(printed.values()) == {best}:
        best = None
    texts = {key: value.text(decimals) for key, value in found.items()}
    return {key: Cell(text, "best" if printed[key] == best else "plain") for key, text in texts.items()}


def paper(value: float | None, decimals: int | None = None) -> Cell:
    """A number of the paper's; an empty cell where it has none."""
    return Cell("" if value is None else number(value, decimals), "paper")
