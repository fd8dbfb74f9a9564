"""What a task asks, how its length is counted, and how an answer is scored."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple, TypeVar

from contentrope.errors import InputError

T = TypeVar("T")
PLACES = 40
"""Depths at which what is asked for may stand, from the beginning of a context to its end."""


ANY_ANSWER = ("qa_1", "squad")
"""Tasks whose references are one answer in several wordings."""


class Example(NamedTuple):
    """A prompt whose continuation, after ``answer_prefix``, is the answer.

    ``answers``: the references. ``new_tokens``: the most that an answer may have.
    """

    prompt: str
    answer_prefix: str
    answers: tuple[str, ...]
    new_tokens: int


@dataclass(frozen=True)
class Case:
    """Which example: all that is drawn for it depends on this."""

    task: str
    length: int
    seed: int
    index: int

    def draw(self, what: str = "") -> Random:
        """A fresh generator; another one for each ``what``, such as the order of words that another one drew."""
        return Random(f"{self.task}/{self.length}/{self.seed}/{self.index}/{what}")

    @property
    def place(self) -> int:
        """Of what is asked for."""
        return place_of(self.index)

    def other_places(self, count: int, draw: Random) -> list[int]:
        return draw.sample([place for place in range(PLACES) if place != self.place], count)

    def put(self, what: T, among: list[T]) -> list[T]:
        """A list with what is asked for at its place."""
        at = round(self.place * len(among) / (PLACES - 1))
        return [*among[:at], what, *among[at:]]


def chosen(case: Case, asked: list[T]) -> T:
    """The same at every length, so that lengths can be compared."""
    if case.index >= len(asked):
        raise InputError(f"task {case.task} has {len(asked)} examples, more were asked for; take at most so many")
    return Random(f"{case.task}/{case.seed}").sample(asked, len(asked))[case.index]


def score(task: str, example: Example, answer: str) -> float:
    """Share of the references that an answer contains, in upper or lower case; for questions, whether it has any.

    >>> asked = Example("The codes are 12 and 34. Which codes?", " They are", ("12", "34"), new_tokens=8)
    >>> score("niah_multivalue", asked, " 34 and 56."), score("qa_1", asked, " 34 and 56.")
    (0.5, 1.0)
    """
    found = [reference.lower() in answer.lower() for reference in example.answers]
    return float(any(found)) if task in ANY_ANSWER else sum(found) / len(found)


def prompt_ids(tokenizer: Any, example: Example, *, chat: bool = False) -> list[int]:
    """The tokens that a model continues: prompt and answer prefix, with the special tokens that a text begins with.

    ``chat``: the prompt is a user's message in the tokenizer's chat template, and the prefix begins the answer.
    """
    if chat:
        return _ids(tokenizer, _as_chat(tokenizer, example.prompt) + example.answer_prefix, special=False)
    return _ids(tokenizer, example.prompt + example.answer_prefix, special=True)


def length_of(tokenizer: Any, example: Example, *, chat: bool = False) -> int:
    """The length of an example: prompt, answer prefix, special tokens, and room for the answer."""
    return len(prompt_ids(tokenizer, example, chat=chat)) + example.new_tokens


def place_of(index: int) -> int:
    """The place, of :data:`PLACES`, of what the example with this index asks for.

    The first 5, 10, 20 and 40 examples are spread evenly, so that fewer of them are a sample of more.

    >>> sorted(map(place_of, range(10)))
    [0, 4, 5, 10, 15, 20, 24, 25, 30, 35]
    >>> sorted(map(place_of, range(40))) == list(range(40))
    True
    """
    index %= PLACES
    halves = 20 * (index % 2) + 10 * (index // 2 % 2) + 5 * (index // 4 % 2)
    return halves + (0, 4, 2, 1, 3)[index // 8]


def _as_chat(tokenizer: Any, prompt: str) -> str:
    if getattr(tokenizer, "chat_template", None) is None:
        raise InputError("the tokenizer has no chat template; ask without chat, or take a model that was made for it")
    message = [{"role": "user", "content": prompt}]
    return str(tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False))


def _ids(tokenizer: Any, text: str, *, special: bool) -> list[int]:
    ids = list(tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])
    # Some tokenizers end every text; here it goes on.
    while special and ids and ids[-1] == tokenizer.eos_token_id:
        ids.pop()
    return ids
