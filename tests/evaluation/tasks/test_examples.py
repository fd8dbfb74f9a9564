"""Examples of tasks: the same again, of the length asked for, solvable by reading and not without."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Any

import pytest

from contentrope.corpora.long_context import LongContext
from contentrope.errors import InputError
from contentrope.evaluation.tasks import (
    GROUPS,
    TASKS,
    Example,
    examples,
    length_of,
    needs_data,
    needs_prose,
    place_of,
    prompt_ids,
    score,
    tasks_named,
)
from contentrope.evaluation.tasks.example import ANY_ANSWER, PLACES
from contentrope.evaluation.tasks.haystacks import SENTENCE_END
from tests.evaluation.tasks.oracle import NEEDLE, answer
from tests.evaluation.tasks.tokenizer import Chatting, Ending, Words
from tests.support.long_context import QUESTIONS, small_data

NEEDLES = GROUPS["needle"]
READ = (*NEEDLES, "vt", "cwe", "fwe", "kv")
"""Tasks that the oracle can read."""
LENGTHS = {"cwe": 4000}
GRAIN = {
    **dict.fromkeys(("niah_single_1", "vt"), 12),
    **dict.fromkeys((*NEEDLES[1:4], *NEEDLES[6:], *GROUPS["babi"]), 6),
    "niah_multikey_2": 24,
    "niah_multikey_3": 40,
    "cwe": 20,
    "fwe": 6,
    "qa_1": 20,
    "kv": 36,
}
"""Tokens of the largest piece that an example may lack."""
FILLED = tuple(GRAIN)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LongContext:
    return small_data(tmp_path / "small", monkeypatch)


def made(task: str, data: LongContext | None, count: int = 3, *, length: int = 0, **more: Any) -> list[Example]:
    return examples(task, more.pop("tokenizer", Words()), length or LENGTHS.get(task, 1500), count, data=data, **more)


@pytest.mark.parametrize("task", [*TASKS, "kv_7", "kv_75"])
def test_they_depend_on_what_is_asked_for_alone(task: str, data: LongContext) -> None:
    length = 4000 if task == "kv_75" else 0
    first = made(task, data, length=length)
    assert made(task, data, length=length) == first
    assert made(task, data, 2, length=length) == first[:2], "fewer are the first of more"
    assert len({example.prompt for example in first}) == 3
    assert made(task, data, length=length, seed=1) != first


@pytest.mark.parametrize("task", FILLED)
@pytest.mark.parametrize("more", [0, 333])
def test_their_length_is_exact_to_the_grain(task: str, more: int, data: LongContext) -> None:
    tokenizer = Words()
    length = LENGTHS.get(task, 1500) + more
    for example in made(task, data, length=length, tokenizer=tokenizer):
        said = tokenizer(example.prompt + example.answer_prefix)["input_ids"]
        assert length_of(tokenizer, example) == len(said) + example.new_tokens
        assert length - GRAIN[task] < len(said) + example.new_tokens <= length


@pytest.mark.parametrize("task", [*TASKS, "kv_7"])
def test_what_is_asked_for_is_in_the_prompt(task: str, data: LongContext) -> None:
    for example in made(task, data):
        assert example.answers
        there = [reference in example.prompt for reference in example.answers]
        assert any(there) if task in ANY_ANSWER else all(there)
        assert not any(reference in example.answer_prefix for reference in example.answers)


@pytest.mark.parametrize("task", [*READ, "kv_7"])
def test_reading_solves_them(task: str, data: LongContext) -> None:
    for example in made(task, data):
        assert score(task, example, answer(task, example.prompt)) == 1


@pytest.mark.parametrize("task", NEEDLES)
def test_without_the_needles_nothing_solves_them(task: str, data: LongContext) -> None:
    for example in made(task, data):
        without = NEEDLE.sub("", example.prompt)
        assert score(task, example, answer(task, without)) == 0
        assert score(task, example, without) == 0, "the codes stand nowhere else"


@pytest.mark.parametrize("task", NEEDLES)
def test_needles_are_there_once_and_decoys_are_others(task: str, data: LongContext) -> None:
    for example in made(task, data):
        told = NEEDLE.findall(example.prompt)
        codes = [code for _, code in told]
        assert len(set(codes)) == len(codes)
        assert set(example.answers) <= set(codes)
        names = {name for name, code in told if code in example.answers}
        expected = {"niah_multikey_1": (4, 1), "niah_multivalue": (4, 1), "niah_multiquery": (4, 4)}
        few = expected.get(task, (1, 1))
        assert len(names) == few[1]
        if task in ("niah_multikey_2", "niah_multikey_3"):
            assert len(told) > 15
            assert len({name for name, _ in told}) == len(told)
        else:
            assert len(told) == few[0]
            assert [name for name, _ in told if name not in names] == [
                name for name, code in told if code not in example.answers
            ]


def depth(example: Example, task: str) -> float:
    """Where what is asked for begins, as a share of the context without it."""
    context = "\n\n".join(example.prompt.split("\n\n")[1:-1])
    if task.startswith("kv"):
        lines = context.strip("{}").split(",\n")
        return next(n for n, line in enumerate(lines) if example.answers[0] in line) / (len(lines) - 1)
    sentence = next(found for found in NEEDLE.finditer(context) if found[2] == example.answers[0])
    return sentence.start() / (len(context) - len(sentence[0]))


@pytest.mark.parametrize("task", ["niah_single_1", "niah_single_2", "niah_multikey_2", "kv"])
def test_depths_are_spread_evenly(task: str, data: LongContext) -> None:
    found = sorted(depth(example, task) for example in made(task, data, PLACES, length=2000))
    assert found == pytest.approx([place / (PLACES - 1) for place in range(PLACES)], abs=0.04)
    assert found[0] == 0


def test_few_examples_are_spread_too() -> None:
    for count in (5, 10, 20):
        places = sorted(place_of(index) for index in range(count))
        assert max(b - a for a, b in zip([0, *places], [*places, PLACES], strict=True)) <= PLACES / count + 5
    assert [place_of(index + PLACES) for index in range(PLACES)] == [place_of(index) for index in range(PLACES)]


def test_prose_keeps_its_paragraphs_and_needles_stand_between_sentences(data: LongContext) -> None:
    book = "\n\n".join(data.books("validation").values())
    for example in made("niah_multikey_1", data, 10):
        context = "\n\n".join(example.prompt.split("\n\n")[1:-1])
        assert context.count("\n\n") > 5
        for found in NEEDLE.finditer(context):
            before = context[: found.start()]
            ends = not before or SENTENCE_END.search(before[-30:]) or NEEDLE.search(before[-60:])
            assert ends or found.end() == len(context)
        plain = NEEDLE.sub("", context)
        assert plain.split()[:20] == book.split()[book_place(book, plain) :][:20]


def book_place(book: str, plain: str) -> int:
    words, start = book.split(), plain.split()[:20]
    return next(n for n in range(len(words)) if words[n : n + 20] == start)


def test_a_text_of_the_users_takes_the_place_of_the_books() -> None:
    text = "Never mind the lighthouse. It is far.\n" * 30
    for task in NEEDLES:
        for example in made(task, None, text=text):
            assert ("lighthouse" in example.prompt) == needs_prose(task)
            assert score(task, example, answer(task, example.prompt)) == 1
    assert not any(needs_data(task) for task in (*NEEDLES, "vt", "cwe", "fwe", "kv", "kv_7"))


def test_questions_have_their_passage_once_among_others(data: LongContext) -> None:
    places = []
    for example in made("qa_1", data, 40, length=400):
        passages = re.findall(r"Passage \d+: (.*)", example.prompt)
        holding = [n for n, passage in enumerate(passages) if example.answers[0] in passage]
        assert len(holding) == 1
        assert len(passages) > 10
        assert f"number {int(example.answers[0][-3:])}?" in example.prompt
        places.append(holding[0] / (len(passages) - 1))
    assert sorted(places) == pytest.approx([place / (PLACES - 1) for place in range(PLACES)], abs=0.05)
    long = made("qa_1", data, 1, length=3000)[0]
    assert long.prompt.count("Passage ") > 2 * QUESTIONS, "others come again where there are too few"
    assert long.prompt.count(long.answers[0]) == 1


def test_a_question_may_stand_with_its_passage_alone(data: LongContext) -> None:
    example = made("squad", data, 1)[0]
    assert len(re.findall(r"Passage \d+:", example.prompt)) == 1
    assert score("squad", example, f"It is {example.answers[0]}.") == 1
    assert [e.answers for e in made("qa_1", data, length=400)] == [e.answers for e in made("qa_1", data, length=800)]


@pytest.mark.parametrize("task", GROUPS["babi"])
def test_facts_are_told_in_order_and_the_last_one_needed_is_at_its_place(task: str, data: LongContext) -> None:
    stories = data.babi(int(task[-1]), "test")
    for index, example in enumerate(made(task, data, 20)):
        told = example.prompt.partition("longer text:\n\n")[2].rpartition("\n\nQuestion: ")[0]
        facts = re.findall(r"(?:Mary|John|Sandra) went to the \w+\.", told)
        story = next(s for s in stories if list(s.facts) == facts and s.question in example.prompt)
        assert example.answers == (story.answer,)
        last = [found.start() for found in re.finditer(r"\w+ went to the \w+\.", told)][max(story.supporting)]
        # The facts before it take some room too.
        assert last / len(told) == pytest.approx(place_of(index) / (PLACES - 1), abs=0.15)


def test_lists_of_75_pairs_are_those_of_the_file(data: LongContext) -> None:
    given = {one.value: dict(one.pairs) for one in data.key_values()}
    for example in made("kv_75", data, 3, length=4000):
        listed = dict(re.findall(r'"(\S+)": "(\S+)"', example.prompt))
        assert listed == given.pop(example.answers[0])


@pytest.mark.parametrize("count", [2, 30])
def test_lists_have_as_many_pairs_as_asked_for(count: int) -> None:
    tokenizer = Words()
    for length in (1500, 3000):
        example = examples(f"kv_{count}", tokenizer, length, 1)[0]
        assert len(re.findall(r'"\S+": "\S+"', example.prompt)) == count
        assert length_of(tokenizer, example) <= length


def test_groups() -> None:
    assert len(GROUPS["needle"]) == 8
    assert len(GROUPS["ruler"]) == 12
    assert tasks_named(["needle", "niah_single_1", "kv", "kv_1000"]) == [*NEEDLES, "kv", "kv_1000"]


# --- scoring and tokens ---------------------------------------------------------------------------------------------


def test_scores() -> None:
    asked = Example("", "", ("One", "two", "three", "four"), 8)
    assert [score("vt", asked, text) for text in ("", "ONE", "two one", "onetwothreefour")] == [0, 0.25, 0.5, 1]
    assert [score("qa_1", asked, text) for text in ("", "five", "some three")] == [0, 0, 1]


def test_special_tokens_and_chat_templates_count() -> None:
    example = Example("What?", "It is", ("x",), 5)
    words, chatting = Words(), Chatting()
    assert prompt_ids(words, example) == words("What?It is")["input_ids"]
    assert prompt_ids(Ending(), example)[-1] != Ending.eos_token_id
    assert chatting.decode(prompt_ids(chatting, example, chat=True)) == "[user] What? [assistant] It is"
    assert length_of(chatting, example, chat=True) > length_of(chatting, example) == len(prompt_ids(words, example)) + 5
    long = examples("kv", chatting, 800, 1, chat=True)[0]
    assert 800 - GRAIN["kv"] < length_of(chatting, long, chat=True) <= 800
    with pytest.raises(InputError, match="no chat template"):
        prompt_ids(words, example, chat=True)


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "nothing", "kv_", "kv_x", "kv_-1", "kv_0", "kv_9999999", "NEEDLE"])
def test_an_unknown_task_is_refused_with_the_list_of_tasks(name: str) -> None:
    with pytest.raises(InputError) as caught:
        tasks_named(["kv", name])
    assert all(task in str(caught.value) for task in (*TASKS, *GROUPS, repr(name)))


def test_bad_input_is_refused(data: LongContext, monkeypatch: pytest.MonkeyPatch) -> None:
    words = Words()
    for task in TASKS:
        with pytest.raises(InputError, match=f"length 40 is too short for task {task}"):
            examples(task, words, 40, 1, data=data)
    with pytest.raises(InputError, match="is a group of tasks"):
        examples("needle", words, 1000, 1)
    with pytest.raises(InputError, match="count must be at least 1, got 0"):
        examples("kv", words, 1000, 0)
    with pytest.raises(InputError, match="has 3 examples"):
        examples("kv_75", words, 4000, 4, data=data)
    for task in ("kv_75", "qa_1", "squad", "babi_2"):
        with pytest.raises(InputError, match=f"{task} is made from the long-context texts"):
            examples(task, words, 4000, 1, text="Any text.")
    with pytest.raises(InputError, match="niah_single_2 hides things in prose"):
        examples("niah_single_2", words, 4000, 1)
    with pytest.raises(InputError, match="has no words"):
        examples("niah_single_2", words, 4000, 1, text=" \n")


def test_the_oracle_sees_what_is_wrong() -> None:
    """A list whose value was exchanged, variables that come from elsewhere, words that come as often."""
    example = examples("kv_7", Words(), 1500, 1)[0]
    other = str(Random(0).random())
    assert score("kv", example, answer("kv", example.prompt.replace(example.answers[0], other))) == 0
    chain = examples("vt", Words(), 1500, 1)[0]
    cut = chain.prompt.replace(f"= {chain.answers[2]}.", "= OTHER.")
    assert score("vt", chain, answer("vt", cut)) == 0.6
