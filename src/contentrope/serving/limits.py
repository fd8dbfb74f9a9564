"""How much a service takes on before it refuses."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from contentrope.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Tokens, bytes, seconds and numbers of things; each refusal names the limit it met.

    >>> Limits(rows=0)
    Traceback (most recent call last):
    contentrope.errors.InputError: rows must be more than 0, got 0
    """

    queue: int = 256
    """Requests that wait for their turn."""
    rows: int = 16
    """Requests that are decoded together."""
    batches: int = 4
    """Batches that take turns."""
    timeout: float = 300.0
    """Seconds for a request, its time in the queue among them."""
    drain: float = 30.0
    """Seconds that running requests get when the service is told to stop."""
    new_tokens: int = 2048
    """Tokens of an answer."""
    context: int = 131072
    """Tokens of documents, messages and answer together."""
    body: int = 8 * 2**20
    """Bytes of a request."""
    messages: int = 1024
    documents: int = 10000
    cache: float = 2.0 * 2**30
    """Bytes of keys and values of document sets that are kept; and of those that are copied for a batch."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{field.name} must be more than 0, got {value}")
