"""The report of the context-growth experiment."""

from __future__ import annotations

import math
from collections.abc import Collection

from contentrope.reports.blocks import Block, Heading, Paragraph, Picture, Points
from contentrope.reports.costs import cost_table
from contentrope.reports.described import repeat, unfinished
from contentrope.reports.growth import described
from contentrope.reports.growth.curves import curve
from contentrope.reports.growth.details import distant_parts, distant_table, position_curves, position_table
from contentrope.reports.growth.figures import CURVE, POSITIONS
from contentrope.reports.growth.findings import findings
from contentrope.reports.growth.paper import paper_curve
from contentrope.reports.growth.tables import length_table
from contentrope.reports.read import Results, variants_of


def document(results: Results, pictures: Collection[str], no_pictures: str | None = None) -> list[Block]:
    """The whole report; ``pictures`` names those that were drawn, ``no_pictures`` says why there are none."""
    missing = unfinished(results)
    blocks: list[Block] = [Heading(described.title(results), 1)]
    blocks += [Paragraph(missing)] if missing else []
    blocks += [Paragraph(described.what_was_run(results))]
    if variants_of(results):
        blocks += [*_growth(results, pictures, no_pictures), *_positions(results, pictures), *_distant(results)]
        blocks += [Heading("Training"), cost_table(results)]
    return [*blocks, *repeat(results)]


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
