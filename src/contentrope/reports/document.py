"""A report as a list of blocks, so that Markdown and HTML say the same."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from contentrope.reports import described
from contentrope.reports.details import cost_table, distant_parts, distant_table, position_curves, position_table
from contentrope.reports.findings import findings
from contentrope.reports.paper import paper_curve
from contentrope.reports.read import Results, curve, variants_of
from contentrope.reports.tables import Table, length_table

CURVE, POSITIONS = "curve", "positions"


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


def document(results: Results, pictures: Collection[str], no_pictures: str | None = None) -> list[Block]:
    """The whole report; ``pictures`` names those that were drawn, ``no_pictures`` says why there are none."""
    unfinished = described.unfinished(results)
    blocks: list[Block] = [Heading(described.title(results), 1)]
    blocks += [Paragraph(unfinished)] if unfinished else []
    blocks += [Paragraph(described.what_was_run(results))]
    if variants_of(results):
        blocks += [*_growth(results, pictures, no_pictures), *_positions(results, pictures), *_distant(results)]
        blocks += [Heading("Training"), cost_table(results)]
    return [*blocks, *_repeat(results)]


def _growth(results: Results, pictures: Collection[str], no_pictures: str | None) -> list[Block]:
    blocks: list[Block] = [Heading("Perplexity by length")]
    words = "Perplexity against characters read, one line per variant; the numbers are in the table."
    blocks += [Picture(CURVE, words)] if CURVE in pictures else []
    blocks += [Paragraph(no_pictures)] if no_pictures else []
    blocks += [length_table(results), Paragraph(_legend(results))]
    said = findings(results)
    return [*blocks, Heading("What the numbers say"), Points(said)] if said else blocks


def _legend(results: Results) -> str:
    names = variants_of(results)
    measured = [value for name in names for value in curve(results, name).values()]
    notes = ["Perplexity per character; lower is better, the lowest of each column is bold."]
    if any(value.spread is not None for value in measured):
        notes.append("± is the standard deviation over seeds; a number without it is from one seed.")
    if any(math.isinf(value.mean) for value in measured):
        notes.append("inf: not a finite number with at least one seed.")
    if any(paper_curve(results, name) for name in names):
        notes.append("In italics: Table 1 of the paper.")
    return " ".join(notes)


def _positions(results: Results, pictures: Collection[str]) -> list[Block]:
    table = position_table(results)
    if table is None:
        return []
    edges, _ = position_curves(results)
    words = f"Perplexity by position in windows of {edges[-1]:,} characters, mean over seeds: does reading on help?"
    picture: list[Block] = [Picture(POSITIONS, words)] if POSITIONS in pictures else []
    return [Heading("By position in the window"), Paragraph(words), *picture, table]


def _distant(results: Results) -> list[Block]:
    table = distant_table(results)
    if table is None:
        return []
    part = next(part for name in variants_of(results) for part in distant_parts(results, name))
    words = (
        f"Perplexity of the last units, at least {part['near']:,} characters, of windows of {part['length']:,}, after "
        "the text as written, and its change when the units before them are in another order, missing, or from another "
        f"text: what makes no difference was not used. {part['scored']:,} characters are scored."
    )
    return [Heading("Use of distant text"), Paragraph(words), table]


def _repeat(results: Results) -> list[Block]:
    settings = "Every setting, seed and unrounded number is in results.json."
    if results.get("preset") == described.CUSTOM:
        settings = "The settings were changed by hand: give those under config in results.json as options. " + settings
    rebuild = "This report alone is rebuilt by:"
    return [
        Heading("Repeat it"),
        Command(described.command(results)),
        Paragraph(f"{settings} {rebuild}"),
        Command(described.rebuild_command(results)),
    ]
