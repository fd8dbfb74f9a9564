"""Tasks that can be solved only by reading a long context: made here, without a network, at any length."""

from contentrope.evaluation.tasks.example import Example, length_of, place_of, prompt_ids, score
from contentrope.evaluation.tasks.registry import GROUPS, TASKS, examples, needs_data, needs_prose, tasks_named

__all__ = [
    "GROUPS",
    "TASKS",
    "Example",
    "examples",
    "length_of",
    "needs_data",
    "needs_prose",
    "place_of",
    "prompt_ids",
    "score",
    "tasks_named",
]
