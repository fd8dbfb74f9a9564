"""The sentences: twelve for a pair, twelve for a triple.

The given entity and its role stand before the targets, and each target's role before its name: a reader that has come
to a target knows all it needs. Every slot stands once in every template.
"""

from __future__ import annotations

import re
from typing import NamedTuple

PAIRS = (
    "if {given} is the {given_role}, the {first_role} is {first}.",
    "with {given} as the {given_role}, the {first_role} is {first}.",
    "when the {given_role} is {given}, the {first_role} is {first}.",
    "{given} is the {given_role} and the {first_role} is {first}.",
    "the {given_role} is {given}, so the {first_role} must be {first}.",
    "since {given} is the {given_role}, the {first_role} is {first}.",
    "given that {given} is the {given_role}, the {first_role} is {first}.",
    "for {given} the {given_role}, the {first_role} is {first}.",
    "as the {given_role}, {given} has the {first_role} {first}.",
    "the {given_role} {given} knows the {first_role} {first}.",
    "{given}, the {given_role}, belongs with the {first_role} {first}.",
    "next to {given} the {given_role} stands the {first_role} {first}.",
)
TRIPLES = (
    "if {given} is the {given_role}, the {first_role} is {first} and the {second_role} is {second}.",
    "with {given} as the {given_role}, the {first_role} is {first} and the {second_role} is {second}.",
    "when the {given_role} is {given}, the {first_role} is {first} and the {second_role} is {second}.",
    "{given} is the {given_role}, the {first_role} is {first} and the {second_role} is {second}.",
    "the {given_role} is {given}, so the {first_role} must be {first} and the {second_role} {second}.",
    "since {given} is the {given_role}, the {first_role} is {first} and the {second_role} is {second}.",
    "given that {given} is the {given_role}, the {first_role} is {first} and the {second_role} is {second}.",
    "for {given} the {given_role}, the {first_role} is {first} and the {second_role} is {second}.",
    "as the {given_role}, {given} has the {first_role} {first} and the {second_role} {second}.",
    "the {given_role} {given} knows the {first_role} {first} and the {second_role} {second}.",
    "{given}, the {given_role}, belongs with the {first_role} {first} and the {second_role} {second}.",
    "next to {given} the {given_role} stand the {first_role} {first} and the {second_role} {second}.",
)
TEMPLATES = {2: PAIRS, 3: TRIPLES}
PER_KIND = 12

SLOTS = ("given", "given_role", "first", "first_role", "second", "second_role")
TARGETS = ("first", "second")


class Part(NamedTuple):
    """A piece of a template: literal text, or the name of a slot."""

    text: str
    is_slot: bool


def parts_of(template: str) -> list[Part]:
    """Take a template apart.

    >>> [part.text for part in parts_of("the {given_role} is {given}.")]
    ['the ', 'given_role', ' is ', 'given', '.']
    """
    # The pattern's group makes every second piece a slot's name.
    pieces = enumerate(re.split(r"\{(\w+)\}", template))
    return [Part(text, place % 2 == 1) for place, text in pieces if text]


def literal_length(template: str) -> int:
    """Characters besides names and roles.

    >>> literal_length("the {given_role} is {given}.")
    9
    """
    return sum(len(part.text) for part in parts_of(template) if not part.is_slot)
