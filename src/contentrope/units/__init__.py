"""Units: the stretches of text (lines, sentences, ...) that get an address. Read `table.py` first."""

from contentrope.units.descriptions import describe, require_description, rule_described
from contentrope.units.rules import Boundaries, FixedLength, Rule, Terminators
from contentrope.units.segmenter import Segmenter, SegmenterState, segment
from contentrope.units.table import Units
from contentrope.units.text import TextRule, vocabulary_of

__all__ = [
    "Boundaries",
    "FixedLength",
    "Rule",
    "Segmenter",
    "SegmenterState",
    "Terminators",
    "TextRule",
    "Units",
    "describe",
    "require_description",
    "rule_described",
    "segment",
    "vocabulary_of",
]
