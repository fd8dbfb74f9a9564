"""Accelerations in words."""

from __future__ import annotations

WORDS = {"none": "eager", "compile": "compiled", "graphs": "as one CUDA graph"}


def sentence(acceleration: str) -> str:
    """At the beginning of a sentence.

    >>> sentence("graphs")
    'As one CUDA graph'
    """
    words = WORDS[acceleration]
    return words[0].upper() + words[1:]
