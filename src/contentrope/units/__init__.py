"""Units: the stretches of text (lines, sentences, ...) that get an address. Read `table.py` first."""

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
    "segment",
    "vocabulary_of",
]
