"""The report of the retrofit experiment."""

from __future__ import annotations

from collections.abc import Collection

from contentrope.reports.blocks import Block, Heading, Paragraph, Picture, Points
from contentrope.reports.costs import cost_table
from contentrope.reports.described import repeat, unfinished
from contentrope.reports.growth.curves import curve
from contentrope.reports.growth.figures import CURVE
from contentrope.reports.read import Results, variants_of
from contentrope.reports.retrofit.described import UNTOUCHED, along, title, what_was_run
from contentrope.reports.retrofit.findings import findings
from contentrope.reports.retrofit.tables import perplexity_table

PICTURE = "Perplexity by length, one line per conversion of the same original; the numbers are in the table."
VARIANTS = {
    UNTOUCHED: "the original as it is",
    "rope": "the original, trained on for as many steps",
    "content": "content addresses and local positions, all weights trained; positions=gated: by way of positions "
    "between global and local; train=lora: low-rank changes and the addresses; train=addresses: these alone; "
    "start=back,train=nothing: all earlier units seem to lie a long unit back, and nothing is trained",
    "pi, ntk, yarn": "frequencies rescaled by a factor, then trained for as many steps at the same length",
}


def document(results: Results, pictures: Collection[str], no_pictures: str | None = None) -> list[Block]:
    """The whole report; ``pictures`` names those that were drawn, ``no_pictures`` says why there are none."""
    missing = unfinished(results)
    blocks: list[Block] = [Heading(title(results), 1)]
    blocks += [Paragraph(missing)] if missing else []
    blocks += [Paragraph(what_was_run(results)), Points([f"{name}: {words}" for name, words in VARIANTS.items()])]
    if variants_of(results):
        blocks += [Heading("Perplexity by length")]
        blocks += [Picture(CURVE, PICTURE)] if CURVE in pictures else []
        blocks += [Paragraph(no_pictures)] if no_pictures else []
        blocks += [perplexity_table(results), Paragraph(_legend(results))]
        said = findings(results)
        blocks += [Heading("What the numbers say"), Points(said)] if said else []
        blocks += [Heading("Training"), cost_table(results)]
    return [*blocks, *repeat(results)]


def _legend(results: Results) -> str:
    unit = along(results).split()[0].removesuffix("s")
    notes = [f"Perplexity per {unit}; lower is better, the lowest of each column is bold."]
    measured = [value for name in variants_of(results) for value in curve(results, name).values()]
    if any(value.spread is not None for value in measured):
        notes.append("± is the standard deviation over seeds; a number without it is from one seed.")
    return " ".join(notes)
