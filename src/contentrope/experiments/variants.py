"""Names for what an experiment compares: a scheme, with options if it takes any."""

from __future__ import annotations

import json
from typing import Any

from contentrope import schemes
from contentrope.errors import InputError


def parse_variant(name: str) -> tuple[str, dict[str, Any]]:
    """Split ``scheme:option=value,option=value`` into the scheme and its options.

    >>> parse_variant("rope")
    ('rope', {})
    >>> parse_variant("content:competition=1")
    ('content', {'competition': 1})
    """
    scheme, _, rest = name.partition(":")
    if scheme not in schemes.names():
        raise InputError(f"unknown scheme {scheme!r} in {name!r}; known are {', '.join(schemes.names())}")
    options = {}
    for item in filter(None, rest.split(",")):
        option, equals, value = item.partition("=")
        if not (option and equals and value):
            raise InputError(f"{item!r} in {name!r} is not option=value, as in content:competition=1")
        options[option] = _value(value)
    return scheme, options


def _value(text: str) -> Any:
    """Numbers, true, false and null as in JSON; anything else is a string."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
