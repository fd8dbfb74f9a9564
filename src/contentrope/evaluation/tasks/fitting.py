"""Examples of a given length: as many pieces of context as fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from contentrope.errors import InputError
from contentrope.evaluation.tasks.example import Example


class Plan(NamedTuple):
    """An example by the number of its pieces (words, lines, passages): at least and at most so many."""

    build: Callable[[int], Example]
    least: int
    most: int | None = None


def fitted(task: str, plan: Plan, length: int, length_of: Callable[[Example], int]) -> Example:
    """The example with the most pieces whose length is at most ``length``.

    Lengths grow almost in proportion to the pieces, so that a few guesses, each a tokenization, are enough.
    """
    low, high, high_size = plan.least, None, 0
    best = plan.build(low)
    low_size = least = length_of(best)
    if low_size > length:
        raise InputError(
            f"length {length} is too short for task {task}: its shortest example has {low_size} tokens, answer "
            "included; take a longer one"
        )
    steps = 0
    while low_size < length and (high is None or high - low > 1) and low != plan.most:
        steps += 1
        if high is None:
            # Two points of the line, once there are two; before that, a few pieces more.
            rate = (low_size - least) / (low - plan.least) if low > plan.least else 0.0
            guess = low + max(1, int((length - low_size) / rate) + 1) if rate else 2 * low + 16
            guess = guess if plan.most is None else min(guess, plan.most)
        elif steps % 4:
            guess = low + int((length - low_size) / (high_size - low_size) * (high - low))
            guess = min(max(guess, low + 1), high - 1)
        else:  # where the line leads astray
            guess = (low + high) // 2
        example = plan.build(guess)
        size = length_of(example)
        if size <= length:
            low, low_size, best = guess, size, example
        else:
            high, high_size = guess, size
    return best
