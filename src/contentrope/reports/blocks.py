"""What a report is made of: blocks, so that Markdown and HTML say the same."""

from __future__ import annotations

from dataclasses import dataclass

from contentrope.reports.tables import Table


@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Points:
    items: list[str]


@dataclass(frozen=True)
class Command:
    text: str


@dataclass(frozen=True)
class Picture:
    """A picture by the stem of its file, with words for those who cannot see it."""

    name: str
    alternative: str


Block = Heading | Paragraph | Points | Command | Picture | Table
