"""The split of Natural Questions: what is scored is never trained on, and a control that plants some is caught."""

from __future__ import annotations

from contentrope.corpora.long_context import Question
from contentrope.corpora.natural_questions import conversation, document, marks, question, split

MADE = [
    Question(f"who is {n}", (f"n{n}", "other"), f"Of {n} many things are told.", f"Article {n}") for n in range(200)
]


def shared(training: list[Question], scored: list[Question]) -> set[str]:
    return {mark for one in training for mark in marks(one)} & {mark for one in scored for mark in marks(one)}


def test_the_parts_share_nothing_and_lose_nothing() -> None:
    training, scored = split(MADE)
    assert sorted([*training, *scored]) == sorted(MADE)
    assert 20 < len(scored) < 70
    assert not shared(training, scored)
    assert split(MADE[::-1]).scored == scored[::-1], "whatever the order"


def test_what_is_like_something_scored_is_left_out() -> None:
    training, scored = split(MADE)
    one, other = scored[0], training[0]
    planted = [
        other._replace(question=one.question.upper()),
        other._replace(passage=f" {one.passage}\n"),
        Question("who else", ("x",), "Another.", one.title.replace(" ", "  ")),
    ]
    for plant in planted:
        assert shared([*training, plant], scored), "the control is caught"
        found = split([*MADE, plant])
        assert plant not in found.training
        assert not shared(found.training, found.scored)
        assert found.training == training


def test_a_question_is_asked_as_it_is_trained() -> None:
    one = MADE[3]
    assert conversation(one)[:-1] == question(one)
    assert conversation(one)[-1] == {"role": "assistant", "content": "n3"}
    assert one.title in document(one)
    assert one.passage in document(one)
    assert "n3" not in question(one)[0]["content"]
