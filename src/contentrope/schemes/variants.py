"""Names for what an experiment compares: a scheme, with options if it takes any."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, fields
from typing import Any

from contentrope import schemes
from contentrope.config import RotaryConfig
from contentrope.errors import InputError, quoted

ROTARY = tuple(f.name for f in fields(RotaryConfig))


@dataclass(frozen=True)
class Variant:
    """A scheme, its own options, and settings of the rotary positions below it."""

    scheme: str
    options: dict[str, Any] = field(default_factory=dict)
    rotary: dict[str, Any] = field(default_factory=dict)


def parse_variant(name: str) -> Variant:
    """Split ``scheme:option=value,option=value`` into the scheme and its options.

    >>> parse_variant("content:competition=1,frequencies=model_wide")
    Variant(scheme='content', options={'competition': 1}, rotary={'frequencies': 'model_wide'})
    """
    scheme, _, rest = name.partition(":")
    if scheme not in schemes.names():
        raise InputError(
            f"unknown scheme {quoted(scheme)} in {quoted(name)}; choose one of {', '.join(schemes.names())}"
        )
    variant = Variant(scheme)
    for item in filter(None, re.split(r",(?![^\[]*\])", rest)):  # not at commas inside a list
        option, equals, value = item.partition("=")
        if not (option and equals and value):
            raise InputError(f"{quoted(item)} in {quoted(name)} is not option=value, as in content:competition=1")
        if option in {*variant.options, *variant.rotary}:
            raise InputError(f"{quoted(name)} has the option {option} twice")
        (variant.rotary if option in ROTARY else variant.options)[option] = _value(value)
    return variant


def _value(text: str) -> Any:
    """Numbers, lists, true, false and null as in JSON; anything else is a string."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # also a number of thousands of digits, or thousands of brackets
        return text
