"""What a Hugging Face model answers, greedily, with addresses or without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from contentrope.evaluation.tasks.example import Example


def answers(
    model: Any,
    tokenizer: Any,
    examples: Sequence[Example],
    *,
    chat: bool = False,
    batch_tokens: int = 16384,
    enough: Callable[[Example, str], bool] | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> list[str]:
    """What comes after prompt and answer prefix, for each example, by taking the likeliest token again and again.

    Examples of like length are read together, padded on the left, on about ``batch_tokens`` tokens at once;
    ``progress`` is told how many are done. An answer ends where the model ends it, at ``new_tokens``, or as soon as it
    is ``enough``: for a score that further words do not change.
    """
    raise NotImplementedError
