"""The report of the timing experiment."""

from __future__ import annotations

from collections.abc import Collection

from contentrope.reports.blocks import Block, Heading, Paragraph, Picture, Points
from contentrope.reports.described import repeat, unfinished
from contentrope.reports.read import Results, all_runs, variants_of
from contentrope.reports.timing.described import TITLE, what_was_run
from contentrope.reports.timing.figures import OVERHEADS
from contentrope.reports.timing.findings import findings
from contentrope.reports.timing.paper import printed_overhead, target
from contentrope.reports.timing.read import BASELINE, accelerations_of
from contentrope.reports.timing.tables import TITLES, all_measurements, overhead_table

PICTURE = (
    "Overhead over RoPE in percent by row, a mark per scheme, a panel per acceleration; the numbers are in the tables."
)
EVERYTHING = "Overhead of means is what the paper's table has: it averages the timed steps."


def document(results: Results, pictures: Collection[str], no_pictures: str | None = None) -> list[Block]:
    """The whole report; ``pictures`` names those that were drawn, ``no_pictures`` says why there are none."""
    missing = unfinished(results)
    blocks: list[Block] = [Heading(TITLE, 1)]
    blocks += [Paragraph(missing)] if missing else []
    blocks += [Paragraph(what_was_run(results))]
    if variants_of(results):
        blocks += [Picture(OVERHEADS, PICTURE)] if OVERHEADS in pictures else []
        blocks += [Paragraph(no_pictures)] if no_pictures else []
        for acceleration in accelerations_of(results):
            blocks += [Heading(TITLES[acceleration]), overhead_table(results, acceleration)]
        blocks += [Paragraph(_legend(results))]
        said = findings(results)
        blocks += [Heading("What the numbers say"), Points(said)] if said else []
        blocks += [Heading("All measurements"), Paragraph(EVERYTHING), all_measurements(results)]
    return [*blocks, *repeat(results)]


def _legend(results: Results) -> str:
    rows = variants_of(results)
    notes = [
        f"Median milliseconds a step; overhead is the time beyond that of {BASELINE} with the same acceleration, as a "
        "share of it; sequences a step × tokens of each."
    ]
    if any(len(entry["runs"]) > 1 for entry in results["variants"].values()):
        notes.append("± is the standard deviation over repetitions.")
    if any(target(results, row) is not None for row in rows):
        notes.append("Bold: within the target.")
    if any(printed_overhead(row) is not None for row in rows):
        notes.append("In italics: the overhead in the paper, on a Tesla T4, and the target where there is one.")
    if any(
        timing.get("peak_bytes")
        for run in all_runs(results)
        for by in run["timings"].values()
        for timing in by.values()
    ):
        notes.append("Memory: the most that is allocated at a time, as a multiple of RoPE's.")
    return " ".join(notes)
