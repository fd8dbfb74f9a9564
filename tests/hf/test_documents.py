"""Rows with documents: what a model sees in training is what a store serves, and what stands in a row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import contentrope.hf as chf
from contentrope.errors import InputError
from contentrope.hf.chat import encoded, prompt_ids
from contentrope.hf.documents import (
    Document,
    Evened,
    Marked,
    Reading,
    ReadingRows,
    Rows,
    Unmarked,
    among_others,
    document_of,
    pool_of,
    size_of,
)
from contentrope.hf.finetune import CausalLM, with_lora
from contentrope.hf.passages import PassageRows
from contentrope.hf.readings import read_readings
from contentrope.store import UnitStore
from contentrope.training import IGNORED, Batch, Mixed, Windows
from contentrope.units import Segmenter, Terminators, TextRule
from contentrope.units.text import vocabulary_of
from tests.experiments.open_model.tiny import TOKENIZER, prose
from tests.hf.chats import FORGETFUL, PLAIN, chat_tokenizer, conversation
from tests.hf.models import TERMINATOR, enliven, tiny

LINES = Segmenter(Terminators({TERMINATOR}), max_length=7)
READER = torch.tensor([40, 41, TERMINATOR, 42, 43, 44, TERMINATOR, 45, 46])
SHORT: Document = ((7, 8, TERMINATOR, 9),)
LONG: Document = ((11, 12, 13, TERMINATOR), (20, 21, 22, TERMINATOR))
OTHERS: list[Document] = [((n, n + 1, TERMINATOR),) for n in range(22, 34)]

TEXT = torch.tensor(TOKENIZER(prose(3, paragraphs=200))["input_ids"])
SENTENCES = Rows(Segmenter(TextRule("line", vocabulary_of(TOKENIZER)), max_length=60), 700)


def reading(*documents: Document, ids: Tensor = READER) -> Reading:
    weights = torch.zeros(len(ids))
    weights[-3:] = 1.0
    return Reading(documents, ids, weights)


def attached(window: int, competition: float = 0.5) -> Any:
    model = tiny("llama", dtype=torch.float64)
    chf.attach(model, units={TERMINATOR}, max_length=7, window=window, competition=competition, check=False)
    return enliven(model)


@torch.no_grad()
def logits(model: Any, batch: Batch) -> Tensor:
    inputs = dict(batch.inputs)
    return CausalLM(model)(inputs.pop("ids"), **inputs)


# --- a row is what a store serves ----------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [0, 4])
@torch.no_grad()
def test_a_row_is_read_as_the_store_serves_it(window: int, tmp_path: Path) -> None:
    model = attached(window).eval()
    store = UnitStore(tmp_path, model)
    documents = [[number for unit in document for number in unit] for document in (SHORT, LONG)]
    asked = model(READER[None], past_key_values=store.cache(store.add(documents))).logits
    batch = Rows(LINES, length=24).batch([reading(SHORT, LONG), reading(LONG, SHORT)])
    begin = size_of([SHORT, LONG])
    for row in logits(model, batch):
        torch.testing.assert_close(row[begin : begin + len(READER)], asked[0], atol=1e-12, rtol=1e-12)
    as_one_text = logits(model, Unmarked(_Fixed(batch)).at(0, 2, 0))
    assert not torch.allclose(as_one_text[0, begin : begin + len(READER)], asked[0], atol=1e-3)


class _Fixed:
    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def at(self, step: int, rows: int, seed: int) -> Batch:
        return self.batch


@torch.no_grad()
def test_the_reader_of_a_text_rule_begins_anew_behind_documents(tmp_path: Path) -> None:
    """A rule that remembers what stood before, as that of paragraphs, knows nothing of the documents."""
    segmenter = Segmenter(TextRule("paragraph", vocabulary_of(TOKENIZER)), max_length=24)
    model = tiny("llama", dtype=torch.float64, vocab_size=len(TOKENIZER))
    chf.attach(model, TOKENIZER, units="paragraph", max_length=24, window=5, competition=1.0, check=False)
    enliven(model).eval()
    texts, asked = ["the sea was calm\n", "ship\n\nport\n\nlow sun\n\nleft"], "\n\nwhat was\n\n\ncalm? the sea"
    documents = tuple(document_of(text, TOKENIZER, segmenter) for text in texts)
    assert len(documents[1]) > 1, "one is cut"
    store = UnitStore(tmp_path, model, TOKENIZER)
    keys = store.add(texts)
    assert sorted(map(len, store.units_of(keys).values())) == sorted(map(len, documents))
    ids = torch.tensor(TOKENIZER(asked)["input_ids"])
    expected = model(ids[None], past_key_values=store.cache(keys)).logits[0]
    (row,) = logits(model, Rows(segmenter, 80).batch([reading(*documents, ids=ids)]))
    begin = size_of(documents)
    torch.testing.assert_close(row[begin : begin + len(ids)], expected, atol=1e-12, rtol=1e-12)


def test_what_reads_documents_begins_as_a_service_writes_it() -> None:
    tokenizer, messages = chat_tokenizer(PLAIN), conversation("ab", "cd e", "f", "gh")
    found = encoded(messages, tokenizer, "here")
    for last in (1, 3):
        asked = prompt_ids(messages[:last], tokenizer)
        assert found.ids[: len(asked)].tolist() == asked
        assert not found.answers[: len(asked)].all()
        assert found.answers[len(asked)]


# --- rows ----------------------------------------------------------------------------------------------------------


def test_only_answers_count_and_documents_are_memory() -> None:
    batch = Rows(LINES, length=24).batch([reading(SHORT, LONG, SHORT)])
    begin, end = 12, 12 + len(READER)
    ids, targets, ends, memory = (
        x[0].tolist()
        for x in (batch.inputs["ids"], batch.targets, batch.inputs["unit_ends"], batch.inputs["unit_memory"])
    )
    assert ids[:begin] == [*SHORT[0], *LONG[0], *LONG[1]], "a document that is there twice is read once"
    assert memory == [True] * begin + [False] * (24 - begin)
    assert [place for place, target in enumerate(targets) if target != IGNORED] == [end - 4, end - 3, end - 2]
    assert [place for place in range(end) if ends[place]] == [3, 7, 11, begin + 2, begin + 6]


@torch.no_grad()
def test_what_fills_a_row_up_changes_nothing() -> None:
    model = attached(4).eval()
    short, long = (Rows(LINES, length).batch([reading(SHORT)]) for length in (12, 40))
    torch.testing.assert_close(logits(model, short), logits(model, long)[:, :12], atol=1e-12, rtol=1e-12)


def test_documents_of_others_vary_in_number_and_own_ones_stand_everywhere() -> None:
    own, rng = reading(SHORT, LONG), np.random.default_rng(0)
    made = [among_others(own, OTHERS, 44, None, rng) for _ in range(300)]
    counts = {len(each.documents) for each in made}
    assert counts == set(range(2, 11)), "from none of others to as many as fit: 45 - 9 - 11 tokens, 3 each"
    assert all(size_of(each.documents) + len(each.ids) <= 45 for each in made)
    assert all({SHORT, LONG} <= set(each.documents) for each in made)
    full = [each for each in made if len(each.documents) == 10]
    assert {each.documents.index(SHORT) for each in full} == set(range(10))
    assert len(full) > 100, "half of the rows are full"
    assert all(len(among_others(own, OTHERS, 44, most, rng).documents) <= 2 + most for most in (0, 1) for _ in range(9))
    assert len(set(among_others(own, [SHORT, *OTHERS], 44, None, rng).documents)) == 10, "none is there twice"


def test_rows_depend_on_seed_and_step_alone() -> None:
    rows = ReadingRows([reading(SHORT), reading(LONG)], OTHERS, Rows(LINES, 40))
    one, same, later, other = (rows.at(*which) for which in ((3, 4, 1), (3, 4, 1), (4, 4, 1), (3, 4, 2)))
    assert torch.equal(one.inputs["ids"], same.inputs["ids"])
    assert not torch.equal(one.inputs["ids"], later.inputs["ids"])
    assert not torch.equal(one.inputs["ids"], other.inputs["ids"])


@torch.no_grad()
def test_running_text_with_marks_is_read_as_without() -> None:
    model = attached(4).eval()
    windows = Windows(torch.arange(200) % 9, 20)
    marked, plain = Marked(windows, LINES).at(0, 2, 0), windows.at(0, 2, 0)
    assert not marked.inputs["unit_memory"].any()
    assert marked.inputs["unit_ends"].any()
    torch.testing.assert_close(logits(model, marked), logits(model, plain), atol=1e-12, rtol=1e-12)


def test_rows_count_alike_and_tokens_within_a_row_as_before() -> None:
    rows = PassageRows(TEXT, TOKENIZER, SENTENCES)
    asked = ReadingRows([reading(SHORT), reading(LONG)], OTHERS, Rows(LINES, SENTENCES.length))
    mixed = Mixed(rows, asked, 0.5)
    evened, plain = Evened(mixed).at(3, 4, 0), mixed.at(3, 4, 0)
    assert evened.weights is not None
    assert plain.weights is not None
    counts = evened.targets != IGNORED
    torch.testing.assert_close((evened.weights * counts).sum(1), torch.ones(4))
    for row in range(4):
        ratio = evened.weights[row][counts[row]] / plain.weights[row][counts[row]]
        torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))
    assert len({int(row.sum()) for row in counts}) > 1, "they have more and fewer targets"


@pytest.mark.parametrize("lora", [0, 2])
def test_documents_get_gradients_through_their_readers_alone(lora: int) -> None:
    model = CausalLM(with_lora(attached(4), lora) if lora else attached(4)).train()
    mixed = Mixed(
        Marked(Windows(torch.arange(200) % 9, 24), LINES), ReadingRows([reading(SHORT)], OTHERS, Rows(LINES, 24)), 0.5
    )
    batch = mixed.at(0, 2, 0)
    assert batch.inputs["unit_memory"].any(1).tolist() == [False, True]
    inputs = dict(batch.inputs)
    found = model(inputs.pop("ids"), **inputs)
    counted = batch.targets != IGNORED
    torch.nn.functional.cross_entropy(found[counted], batch.targets[counted]).backward()
    trained = [p for p in model.parameters() if p.requires_grad]
    assert trained
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in trained)


# --- files ---------------------------------------------------------------------------------------------------------

CHARACTERS = Segmenter(TextRule("line", vocabulary_of(chat_tokenizer())), max_length=12)


def line(*documents: str, question: str = "ab", answer: str = "cd") -> dict[str, Any]:
    return {"documents": list(documents), "messages": conversation(question, answer)}


def write(path: Path, *lines: Any) -> str:
    path.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in lines))
    return str(path)


def read(path: str, length: int = 80, template: str | None = PLAIN) -> Any:
    return read_readings(path, chat_tokenizer(template), length, CHARACTERS)


def test_lines_become_readings_and_documents_of_held_out_ones_are_not_trained_on(tmp_path: Path) -> None:
    lines = [line("abc\n", "a" * n + "\n", answer="gh") for n in range(1, 8)]
    path = write(tmp_path / "one.jsonl", *lines[:3], line(), *[line("ef\n", "c" * n) for n in range(8)][1:], lines[0])
    found = read(path)
    assert (found.description["training"], found.description["held_out"]) == (8, 1)
    assert found.description["left_out"] == 3, "they have a document of the last line"
    assert not set(found.pool) & set(pool_of(found.held_out))
    text = chat_tokenizer().decode(found.held_out[0].ids)
    assert text == "<user>ab</>\n<assistant>gh</>\n"
    assert found.held_out[0].documents == tuple(
        document_of(text, chat_tokenizer(), CHARACTERS) for text in ("abc\n", "a\n")
    )
    assert len(read(write(tmp_path / "two.jsonl", line("ab\ncd\nefefefef\n"), line("f"))).training[0].documents[0]) > 1


def test_where_all_ask_about_the_same_documents_none_is_left_out(tmp_path: Path) -> None:
    found = read(write(tmp_path / "one.jsonl", *[line("abc\n", "d\n") for _ in range(5)], line("e")))
    assert (found.description["left_out"], found.description["documents_in_both"]) == (0, 0)
    found = read(write(tmp_path / "two.jsonl", line("e"), *[line("abc\n", "d\n") for _ in range(5)]))
    assert (found.description["left_out"], found.description["documents_in_both"]) == (0, 2)
    assert len(found.training) == 5


BAD: dict[str, tuple[Any, str]] = {
    "no list": ({**line(), "documents": "abc"}, "no list of texts"),
    "numbers": ({**line(), "documents": [1]}, "no list of texts"),
    "empty": (line("abc", ""), "document 2 is empty"),
    "no answer": ({"documents": ["a"], "messages": conversation("ab")}, "nothing to learn"),
    "too long": (line("".join("abcdefgh"[n % 8] * (n + 1) + "\n" for n in range(11))), "do not fit into a row of 80"),
    "not JSON": ("{", "not JSON"),
    "no messages": ({"documents": ["a"]}, 'has no "messages"'),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_line_is_named(what: str, tmp_path: Path) -> None:
    bad, message = BAD[what]
    path = write(tmp_path / "chats.jsonl", line("abc"), bad, line("cd"))
    with pytest.raises(InputError) as caught:
        read(path)
    assert f"{path}, line 2" in str(caught.value)
    assert message in str(caught.value)


def test_a_file_without_documents_or_a_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match='no line with "documents"'):
        read(write(tmp_path / "a.jsonl", line(), line()))
    with pytest.raises(InputError, match="no chat template"):
        read(write(tmp_path / "b.jsonl", line("a"), line("b")), template=None)
    with pytest.raises(InputError, match="at least 2"):
        read(write(tmp_path / "c.jsonl", line("a")))


# --- texts alone ---------------------------------------------------------------------------------------------------


def rows_of_text(template: str | None = None) -> list[Reading]:
    tokenizer = TOKENIZER if template is None else with_template(template)
    rows = PassageRows(TEXT, tokenizer, SENTENCES)
    return [rows._row(np.random.default_rng(seed)) for seed in range(40)]


def with_template(template: str) -> Any:
    from contentrope.hf.characters import character_tokenizer

    tokenizer = character_tokenizer("".join(map(chr, range(32, 127))) + "\n")
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize("template", [None, PLAIN, FORGETFUL])
def test_what_is_asked_of_passages_stands_in_one_of_them(template: str | None) -> None:
    asked, went_on = 0, 0
    for row in rows_of_text(template):
        assert size_of(row.documents) + len(row.ids) <= 701
        assert row.documents
        passages = ["".join(TOKENIZER.decode(unit) for unit in document) for document in row.documents]
        if float(row.weights.max()) > 1.0:
            asked += 1
            scored = (row.weights > 1.0).tolist()
            begin = scored.index(True)
            end = scored.index(False, begin) if False in scored[begin:] else len(scored)
            answer = TOKENIZER.decode(row.ids[begin:end]).removesuffix("</>\n")
            first = answer.replace('"', "").replace("}", "").split(",")[0].strip(" .|")
            assert first
            assert any(first in passage for passage in passages)
        else:
            went_on += 1
            behind = TOKENIZER.decode(row.ids)
            whole = TOKENIZER.decode(TEXT)
            assert sum(passage + behind in whole for passage in passages) >= 1, "one of them goes on"
            shown = [behind[place : place + 30] for place in range(0, len(behind) - 30, 5)]
            assert not any(words in passage for words in shown for passage in passages), "none shows what comes"
    assert asked > 5
    assert went_on > 5


def test_passages_end_with_sentences_and_vary_in_number() -> None:
    made = rows_of_text()
    assert len({len(row.documents) for row in made}) > 5
    plain = [row for row in made if float(row.weights.max()) == 1.0]
    ends = [TOKENIZER.decode(document[-1]).rstrip()[-1:] for row in plain for document in row.documents]
    assert ends.count(".") > 0.9 * len(ends)


def test_rows_of_passages_depend_on_seed_and_step_alone_and_need_room() -> None:
    rows = PassageRows(TEXT, TOKENIZER, SENTENCES)
    one, same, other = rows.at(2, 2, 0), rows.at(2, 2, 0), rows.at(3, 2, 0)
    assert torch.equal(one.inputs["ids"], same.inputs["ids"])
    assert not torch.equal(one.inputs["ids"], other.inputs["ids"])
    assert one.weights is not None
    with pytest.raises(InputError, match="has no room for passages"):
        PassageRows(TEXT, TOKENIZER, Rows(SENTENCES.segmenter, 60))
