"""Text rules: each kind on examples and against an independent reading, and tokens against characters."""

import itertools
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contentrope.errors import InputError
from contentrope.units import TextRule, segment, vocabulary_of
from contentrope.units.automata import automaton_of

MARKERS = {"record": "\n|\n", "document": None}
KINDS = ("line", "sentence", "paragraph", "record", "document")
quick = settings(max_examples=60, deadline=None)
texts = st.text(alphabet="aMrsT3.?…'\n\r |<", max_size=40)


def cut(kind, text, marker=None):
    """The text with a ¦ after each character that ends a unit."""
    fires = automaton_of(kind, marker).fires(text)
    return "".join(character + "¦" * fire for character, fire in zip(text, fires, strict=True))


@pytest.mark.parametrize(
    "expected",
    [
        "One.¦ Two.¦",
        "He ran.¦ Did he?¦ Yes!¦",
        "Mr. Fox met DR. Who vs. Prof. X yesterday.¦ Then",
        "The St. Louis store etc. closed.¦",
        "The U.S. economy, e.g. trade, grew.¦",
        "Pi is 3.14 or so.¦ It is 3. Then more.¦",
        "It was 1990!¦ In the 1990s.¦",
        "What?¦! No.¦..",
        "Wait.¦.. what?¦",
        "... ?! \n\n . x?¦",
        "I don't.¦ It’s hers.¦",
        "the cafe\u0301.¦ ok",
        "No mark here\n\n¦\n\nNext\n \t\n¦x",
        "one\ntwo three\n four.¦",
        "你好。¦好吗？¦！",
        "Well…¦ fine",
        'He said "Go.¦" Then',
        "first.¦\n\nSecond",
        "Firms.¦ ",
        "items.¦ s. ms. inc. incs.¦",
    ],
)
def test_sentence(expected):
    assert cut("sentence", expected.replace("¦", "")) == expected


@pytest.mark.parametrize(
    "expected", ["one\n \n¦\n\ntwo\nthree\n\n¦", "\n\n\na\r\n\r\n¦b", " \n\t\n x\n", "a\n\n¦b\n\n¦"]
)
def test_paragraph(expected):
    assert cut("paragraph", expected.replace("¦", "")) == expected


def test_line():
    assert cut("line", "a\r\nb\rc\n\n") == "a\r\n¦b\rc\n¦\n¦"


def test_document_and_record():
    assert cut("document", "a<|endoftext|>b<|endof") == "a<|endoftext|>¦b<|endof"
    assert cut("record", "aaaaa", "aa") == "aa¦aa¦a"


@quick
@given(texts)
def test_paragraph_equals_a_regular_expression(text):
    ends = {match.end() - 1 for match in re.finditer(r"\S[^\S\n]*\n[^\S\n]*\n", text)}
    fires = automaton_of("paragraph", None).fires(text)
    assert {i for i, fire in enumerate(fires) if fire} == ends


@quick
@given(st.text(alphabet="ab", min_size=1, max_size=5), st.text(alphabet="abc", max_size=40))
def test_record_equals_a_search(marker, text):
    ends, at = set(), text.find(marker)
    while at >= 0:
        ends.add(at + len(marker) - 1)
        at = text.find(marker, at + len(marker))
    fires = automaton_of("record", marker).fires(text)
    assert {i for i, fire in enumerate(fires) if fire} == ends


@quick
@given(texts)
def test_every_sentence_has_a_letter_or_digit(text):
    for sentence in cut("sentence", text).split("¦")[:-1]:
        assert any(character.isalnum() for character in sentence)


@quick
@given(st.lists(st.one_of(texts, st.just("<|endoftext|>"), st.just("\n|\n")), max_size=12), st.data())
def test_tokens_end_where_their_characters_do(pieces, data):
    cuts = data.draw(st.lists(st.integers(0, 400), max_size=20))
    text = "".join(pieces)
    edges = sorted({0, len(text), *(c for c in cuts if c < len(text))})
    tokens = [text[a:b] for a, b in itertools.pairwise(edges)]
    vocabulary = sorted({*tokens, "", "zz"})
    ids = [vocabulary.index(token) for token in tokens]
    # Padding, with an id of its own, goes in anywhere and changes nothing.
    holes = data.draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
    padded, kept = [], []
    for token, hole in zip(ids, holes, strict=True):
        padded += [-1, token] if hole else [token]
        kept += [False, True] if hole else [True]
    for kind in KINDS:
        rule = TextRule(kind, vocabulary, marker=MARKERS.get(kind))
        fires = automaton_of(kind, MARKERS.get(kind)).fires(text)
        expected = [any(fires[a:b]) for a, b in itertools.pairwise(edges)]
        valid = torch.tensor([kept]).bool()
        ends, _ = rule.scan(torch.tensor([padded]).long(), valid, rule.initial(1, "cpu"))
        assert ends[valid].tolist() == expected
        assert not ends[~valid].any()


@pytest.mark.parametrize("kind", KINDS)
def test_long_texts_go_in_blocks(kind, monkeypatch):
    alphabet = "ab3.?\n <|endoftext>'Mr"
    ids = torch.randint(0, len(alphabet), (3, 700), generator=torch.Generator().manual_seed(1))
    rule = TextRule(kind, alphabet, marker=MARKERS.get(kind))
    automaton = automaton_of(kind, MARKERS.get(kind))
    expected = [automaton.fires("".join(alphabet[i] for i in row)) for row in ids.tolist()]
    valid = torch.ones_like(ids, dtype=torch.bool)
    for elements in (2**20, 500, 1):
        monkeypatch.setattr("contentrope.units.text._BLOCK_ELEMENTS", elements)
        assert rule.scan(ids, valid, rule.initial(3, "cpu"))[0].tolist() == expected


class Subwords:
    """A tokenizer like SentencePiece's: decoding drops the first space."""

    pieces = ("<s>", "▁The", "▁cat", "s", ".", "▁Mr", "\n", "▁a")

    def __len__(self):
        return len(self.pieces)

    def decode(self, ids, skip_special_tokens=True):
        kept = [self.pieces[i] for i in ids if not (skip_special_tokens and i == 0)]
        return "".join(kept).replace("▁", " ").removeprefix(" ")

    def convert_ids_to_tokens(self, ids):
        return [self.pieces[i] for i in ids]


def test_vocabulary_of_a_tokenizer():
    vocabulary = vocabulary_of(Subwords())
    assert vocabulary == ["<s>", " The", " cat", "s", ".", " Mr", "\n", " a"]
    ids = torch.tensor([[1, 2, 3, 4, 7, 5, 4, 2, 4]])  # The cats. a Mr. cat.
    closes = segment(ids, TextRule("sentence", vocabulary)).closes
    assert closes.int().tolist() == [[0, 0, 0, 1, 0, 0, 0, 0, 1]]


def test_vocabulary_of_passes_what_decode_accepts():
    class Recorder:
        def __len__(self):
            return 1

        def decode(self, ids, **options):
            return str(sorted(options.items()))

    assert vocabulary_of(Recorder()) == ["[('clean_up_tokenization_spaces', False), ('skip_special_tokens', False)]"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TextRule("chapter", "ab"), "kind is 'chapter': choose one of line, sentence, paragraph"),
        (lambda: TextRule("line", []), "the vocabulary is empty"),
        (lambda: TextRule("line", ["a", 3]), r"vocabulary\[1\] is 3"),
        (lambda: TextRule("record", "ab"), "marker is None: kind 'record' needs the text"),
        (lambda: TextRule("document", "ab", marker=""), "marker is '': kind 'document' needs"),
        (lambda: TextRule("line", "ab", marker="|"), r"marker is '\|': kind 'line' takes none"),
        (lambda: TextRule("record", "ab", marker="ab" * 300), "more than 512 states: use a shorter marker"),
        (
            lambda: segment(torch.tensor([[0, 7]]), TextRule("line", "ab")),
            "id 7 is outside the vocabulary of 2",
        ),
        (lambda: segment(torch.tensor([[-1]]), TextRule("line", "ab")), "id -1 is outside the vocabulary"),
    ],
)
def test_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_repr_names_the_kind():
    assert repr(TextRule("record", "a|", marker="|")) == "TextRule('record', 2 tokens, marker='|')"
