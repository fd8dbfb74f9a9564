"""Serialized facts: who stands in which relation to whom, and texts that ask for it."""

from contentrope.facts.distractors import MIXTURE, Condition, most_distractors
from contentrope.facts.layouts import Layout
from contentrope.facts.names import first_names
from contentrope.facts.relations import DOMAINS, ORDERS, RELATIONS, ROLES, Kind, Relation
from contentrope.facts.sampler import Drawn, Names, Sampler
from contentrope.facts.templates import TEMPLATES
from contentrope.facts.vocabulary import PADDING, FactVocabulary
from contentrope.facts.world import PAPER, Counts, FactSet, World

__all__ = [
    "DOMAINS",
    "MIXTURE",
    "ORDERS",
    "PADDING",
    "PAPER",
    "RELATIONS",
    "ROLES",
    "TEMPLATES",
    "Condition",
    "Counts",
    "Drawn",
    "FactSet",
    "FactVocabulary",
    "Kind",
    "Layout",
    "Names",
    "Relation",
    "Sampler",
    "World",
    "first_names",
    "most_distractors",
]
