"""How facts are closed and the text is opened; the paper leaves it open.

==========  =====================================  =========================  ==========
layout      an example with two facts              ends a unit                memory
==========  =====================================  =========================  ==========
``end``     ``FACT;FACT;| if adam is ...``         ``;``                      the facts
``apart``   the same tokens                        ``;`` and ``|``            the facts
``bar``     ``FACT|FACT| if adam is ...``          ``|``                      none
==========  =====================================  =========================  ==========

So ``|`` is the first token of the text (``end``), a unit of its own (``apart``), or the end of every fact (``bar``).
"""

from __future__ import annotations

from typing import Literal, get_args

from contentrope.errors import InputError
from contentrope.facts.relations import require_choice
from contentrope.facts.vocabulary import FactVocabulary

Layout = Literal["end", "apart", "bar"]


def require_layout(layout: str) -> None:
    require_choice("layout", layout, get_args(Layout))


def fact_end(layout: Layout) -> str:
    return "|" if layout == "bar" else ";"


def text_start(layout: Layout) -> str:
    return " " if layout == "bar" else "| "


def terminators(layout: Layout, vocabulary: FactVocabulary) -> tuple[int, ...]:
    """The ids that end a unit."""
    symbols = {"end": ";", "apart": ";|", "bar": "|"}[layout]
    return tuple(map(vocabulary.id_of, symbols))


def reader(layout: Layout, vocabulary: FactVocabulary) -> tuple[int, ...]:
    """The ids before the first of which units are memory: the facts are, the text reads them."""
    if layout == "bar":
        raise InputError("layout 'bar' has no reader marker: its | ends the first fact already; use 'end' or 'apart'")
    return (vocabulary.id_of("|"),)
