"""``nope``: no positions at all; order comes from the causal mask alone."""

from __future__ import annotations

from contentrope.context import Chunk, PlainContext
from contentrope.schemes.base import Scheme


class Nope(Scheme):
    name = "nope"

    def context(self, chunk: Chunk) -> PlainContext:
        return PlainContext(chunk)
