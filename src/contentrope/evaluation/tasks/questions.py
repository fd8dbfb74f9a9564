"""Questions on a passage among other passages, and on facts spread in prose."""

from __future__ import annotations

from contentrope.corpora.long_context import LongContext, Question, Story
from contentrope.evaluation.tasks.example import PLACES, Case, Example, chosen
from contentrope.evaluation.tasks.fitting import Plan
from contentrope.evaluation.tasks.haystacks import Prose

ANSWER_TOKENS, WORD_TOKENS = 32, 12
WORKED = 2
"""Solved examples before a question on facts."""


def among_passages(case: Case, questions: list[Question], most: int | None = None) -> Plan:
    """``qa_1``: the passage that answers a question, among ``most`` passages of other questions, or as many as fit."""
    asked = chosen(case, questions)
    passages = sorted({question.passage for question in questions} - {asked.passage})
    case.draw().shuffle(passages)

    def build(others: int) -> Example:
        # Where all are there already, they come again, as in RULER.
        texts = case.put(asked.passage, [passages[number % len(passages)] for number in range(others)])
        told = "\n\n".join(f"Passage {number}: {text}" for number, text in enumerate(texts, start=1))
        prompt = (
            f"Answer the question at the end from the passages below, in a few words.\n\n{told}\n\n"
            f"Question: {asked.question}\n"
        )
        return Example(prompt, "Answer:", asked.answers, ANSWER_TOKENS)

    return Plan(build, least=0, most=most)


def in_prose(case: Case, prose: Prose, data: LongContext, number: int) -> Plan:
    """``babi``: the facts of a story in their order, spread in prose; the last one needed is at its place."""
    story = chosen(case, data.babi(number, "test"))
    draw, last = case.draw(), max(story.supporting)
    before = sorted(draw.randint(0, case.place) for _ in range(last))
    after = sorted(draw.randint(case.place, PLACES - 1) for _ in range(len(story.facts) - last - 1))
    facts = list(zip([*before, case.place, *after], story.facts, strict=True))
    worked = _worked(data.babi(number, "train"))

    def build(words: int) -> Example:
        prompt = (
            f"Answer questions on facts, in one word, like these:\n\n{worked}\n"
            f"Now the facts are hidden in a longer text:\n\n{prose.part(case.draw('hay'), words, facts)}\n\n"
            f"Question: {story.question}\n"
        )
        return Example(prompt, "Answer:", (story.answer,), WORD_TOKENS)

    return Plan(build, least=2)


def _worked(stories: list[Story]) -> str:
    """The first of the shortest stories, with different answers."""
    by_answer = {story.answer: story for story in sorted(stories, key=lambda story: -len(story.facts))}
    shortest = sorted(by_answer.values(), key=lambda story: len(story.facts))[:WORKED]
    return "\n".join(
        "\n".join([*story.facts, f"Question: {story.question}", f"Answer: {story.answer}", ""]) for story in shortest
    )
