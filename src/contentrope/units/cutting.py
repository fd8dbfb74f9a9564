"""The memory units of a document: one rule for a store and for the training of a model that is to read from it."""

from __future__ import annotations

from itertools import pairwise

import torch

from contentrope.errors import InputError
from contentrope.units.segmenter import Segmenter

CUTS = ("long", "always", "never")

Ids = tuple[int, ...]


def cut(ids: Ids, segmenter: Segmenter, how: str) -> list[Ids]:
    """The memory units of a document.

    "long": one, if it fits into the longest unit; else as many units of the segmenter as fit go into one. "always":
    every unit of the segmenter is one. "never": a document that does not fit is refused.

    >>> from contentrope.units import Terminators
    >>> lines = Segmenter(Terminators({0}), max_length=5)
    >>> cut((7, 0, 8, 0), lines, "long"), cut((7, 0, 8, 0), lines, "always")
    ([(7, 0, 8, 0)], [(7, 0), (8, 0)])
    >>> cut((7, 0, 8, 0, 9, 9, 0, 7, 7, 7, 7, 7, 7), lines, "long")
    [(7, 0, 8, 0), (9, 9, 0), (7, 7, 7, 7, 7), (7,)]
    """
    longest = segmenter.max_length
    if len(ids) <= longest and how != "always":
        return [ids]
    if how == "never":
        raise InputError(
            f"a document has {len(ids)} tokens and a unit at most {longest}: shorten it, attach with a larger "
            "max_length, or open the store with cut='long'"
        )
    segmenter = segmenter.marked_by_mask()
    units, _ = segmenter.advance(segmenter.initial(1), torch.tensor([ids]))
    ends = [end + 1 for end in units.closes[0].nonzero()[:, 0].tolist()]
    begin, edges = 0, [0]
    for last, end in zip([0, *ends], [*ends, len(ids)], strict=True):
        if end - begin > longest or how == "always":
            begin = last
            edges.append(last)
    edges.append(len(ids))
    return [ids[first:end] for first, end in pairwise(edges) if first < end]
