"""Lists and ranges in words."""

from __future__ import annotations

from collections.abc import Sequence


def listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def span(lengths: Sequence[int], among: Sequence[int]) -> str:
    """Lengths in words, as a range if they are neighbours among the lengths read.

    >>> span([512, 1024, 2048], [256, 512, 1024, 2048]), span([256, 1024], [256, 512, 1024])
    ('from 512 to 2,048', 'at 256 and 1,024')
    """
    neighbours = [length for length in among if lengths[0] <= length <= lengths[-1]]
    if len(lengths) > 2 and list(lengths) == neighbours:
        return f"from {lengths[0]:,} to {lengths[-1]:,}"
    return f"at {listed([f'{length:,}' for length in lengths])}"
