"""The report of retrieval from facts."""

from __future__ import annotations

import math
from collections.abc import Collection

from contentrope.reports.blocks import Block, Heading, Paragraph, Picture, Points
from contentrope.reports.costs import cost_table
from contentrope.reports.described import repeat, unfinished
from contentrope.reports.facts.addresses import maps
from contentrope.reports.facts.described import TITLE, facts_per_example, what_was_run
from contentrope.reports.facts.exponents import exponent_tables
from contentrope.reports.facts.figures import HITS, SCALING
from contentrope.reports.facts.findings import findings
from contentrope.reports.facts.inside import examples, units_in_words
from contentrope.reports.facts.losses import LOSSES
from contentrope.reports.facts.paper import paper_scores, trained_alike
from contentrope.reports.facts.rows import HIT, PERPLEXITY, Metric, rows_measured, scores
from contentrope.reports.facts.scaling import scaling_table
from contentrope.reports.facts.tables import order_table, row_table
from contentrope.reports.read import Results, variants_of

TASK = (
    "The model reads facts such as <son> adam <father> brian, then a sentence that states one of them; the characters "
    "of the names it has to supply are scored. Single fact: nothing else is read. Same entities: the other facts have "
    "the same names in other relations. Same relation: they have other names in the same relation. chain2 facts have "
    "two names, chain3 facts three."
)
WORDS = {
    HITS: "Hit@5 by condition, kind and names, one mark per variant; the numbers are in the table.",
    SCALING: "Hit@5 against the number of distractors, one line per variant; the numbers are in the table.",
    LOSSES: "Training loss against steps, mean over seeds, one line per variant.",
}


def document(results: Results, pictures: Collection[str], no_pictures: str | None = None) -> list[Block]:
    """The whole report; ``pictures`` names those that were drawn, ``no_pictures`` says why there are none."""
    missing = unfinished(results)
    blocks: list[Block] = [Heading(TITLE, 1)]
    blocks += [Paragraph(missing)] if missing else []
    blocks += [Paragraph(what_was_run(results)), Paragraph(TASK)]
    if variants_of(results):
        blocks += [*_rows(results, pictures, no_pictures), *_exponents(results)]
        blocks += [*_scaling(results, pictures), *_order(results)]
        blocks += [*_inside(results, pictures), *_training(results, pictures)]
    return [*blocks, *repeat(results)]


def _picture(name: str, pictures: Collection[str], words: str | None = None) -> list[Block]:
    return [Picture(name, words or WORDS[name])] if name in pictures else []


def _rows(results: Results, pictures: Collection[str], no_pictures: str | None) -> list[Block]:
    blocks: list[Block] = [Heading("Hit@5 by row"), *_picture(HITS, pictures)]
    blocks += [Paragraph(no_pictures)] if no_pictures else []
    if rows_measured(results, variants_of(results)):
        blocks += [row_table(results), Paragraph(_legend(results, HIT)), Heading("Perplexity by row")]
        blocks += [row_table(results, PERPLEXITY), Paragraph(_legend(results, PERPLEXITY))]
    said = findings(results)
    return [*blocks, Heading("What the numbers say"), Points(said)] if said else blocks


def _legend(results: Results, metric: Metric) -> str:
    names = variants_of(results)
    measured = [value for name in names for value in scores(results, name, metric).values()]
    meaning = {
        HIT: "The share of examples in which every scored character is among the five most likely; higher is better, "
        "the highest of each row is bold.",
        PERPLEXITY: "Perplexity of the scored characters; lower is better, the lowest of each row is bold.",
    }
    notes = [meaning[metric]]
    if any(value.spread is not None for value in measured):
        notes.append("± is the standard deviation over seeds; a number without it is from one seed.")
    if any(math.isinf(value.mean) for value in measured):
        notes.append("inf: not a finite number with at least one seed.")
    if any(paper_scores(results, name) for name in names):
        notes.append("In italics: the paper's table of complete results, right of what repeats it.")
    return " ".join(notes)


def _exponents(results: Results) -> list[Block]:
    tables = exponent_tables(results)
    if not tables:
        return []
    words = "The same trained models, hit@5 under other exponents of competition than they were trained with."
    if trained_alike(results):
        words += " One fact at a time teaches nothing about the exponent: the logarithm of one completed unit is zero."
    return [Heading("Other exponents"), Paragraph(words), *tables]


def _scaling(results: Results, pictures: Collection[str]) -> list[Block]:
    hits, perplexities = scaling_table(results), scaling_table(results, PERPLEXITY)
    if hits is None or perplexities is None:
        return []
    words = f"More facts of the same relation, with unseen names; training had {facts_per_example(results)} an example."
    return [Heading("More distractors"), Paragraph(words), *_picture(SCALING, pictures), hits, perplexities]


def _order(results: Results) -> list[Block]:
    table = order_table(results)
    if table is None:
        return []
    words = (
        "The same facts before the same sentence, in another order: a reader that does not care for the order gives "
        "the same answer, and the same logits up to rounding."
    )
    return [Heading("The order of the facts"), Paragraph(words), table]


def _inside(results: Results, pictures: Collection[str]) -> list[Block]:
    blocks: list[Block] = []
    for stem, (name, inside) in examples(results).items():
        words = f"Which unit each scored character attends to in {name}, layer by layer; the unit asked for is framed."
        if stem in pictures:
            blocks += [Paragraph(words), Picture(stem, f"{words} The units: {' '.join(units_in_words(inside))}")]
    for stem, (name, addresses) in maps(results).items():
        words = (
            f"The addresses {name} gives to {len(addresses['points']):,} facts, on the two directions in which they "
            "differ most: one mark a fact, coloured by relation or, where there are many, by roles that go together; "
            "then a relation is named where its facts lie together and there is room."
        )
        blocks += [Paragraph(words), Picture(stem, words)] if stem in pictures else []
    return [Heading("A look inside"), *blocks] if blocks else []


def _training(results: Results, pictures: Collection[str]) -> list[Block]:
    return [Heading("Training"), *_picture(LOSSES, pictures), cost_table(results)]
