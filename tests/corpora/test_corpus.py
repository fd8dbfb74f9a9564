"""A corpus: what is trained on, what is held out, and what each may know of the other."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contentrope.corpora import (
    UNKNOWN,
    CharVocabulary,
    Corpus,
    load_corpus,
    read_text,
    shakespeare,
    standard_library_text,
)
from contentrope.errors import InputError

PLAY = "ROMEO:\nWhat light?\n" * 10 + "Zounds!"


@pytest.fixture
def short_play(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short text takes the place of Tiny Shakespeare."""
    monkeypatch.setattr(shakespeare, "SHA256", hashlib.sha256(PLAY.encode()).hexdigest())
    elsewhere.mkdir()
    (elsewhere / "tinyshakespeare.txt").write_text(PLAY)


def written(folder: Path, text: str) -> str:
    (folder / "notes.txt").write_text(text, encoding="utf-8")
    return str(folder / "notes.txt")


def spelled(corpus: Corpus) -> str:
    return corpus.vocabulary.decode([*corpus.training.tolist(), *corpus.held_out.tolist()])


# --- the three sources ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("short_play")
def test_shakespeare_is_read_whole_with_the_vocabulary_of_the_complete_text() -> None:
    assert spelled(load_corpus("shakespeare")) == PLAY
    part = load_corpus("shakespeare", characters=100)
    assert spelled(part) == PLAY[:100]
    assert "Z" not in PLAY[:100]
    assert part.vocabulary == CharVocabulary.from_text(PLAY)


def test_stdlib_is_the_embedded_text_with_the_vocabulary_of_what_is_taken() -> None:
    corpus = load_corpus("stdlib", characters=5_000)
    text = standard_library_text(5_000)
    assert corpus.name == "stdlib"
    assert spelled(corpus) == text
    assert corpus.vocabulary == CharVocabulary.from_text(text)


def test_stdlib_has_a_length_by_itself() -> None:
    corpus = load_corpus("stdlib")
    assert (len(corpus.training), len(corpus.held_out)) == (1_080_000, 120_000)


def test_a_file_and_a_folder_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, "abcab" * 4)
    for source in (path, tmp_path, str(tmp_path)):
        assert spelled(load_corpus(source)) == "abcab" * 4
    assert load_corpus(path).name == "notes.txt"
    assert load_corpus(f"{tmp_path}/").name == tmp_path.name


def test_a_path_may_have_the_name_of_a_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("stdlib").write_text("abcab" * 4)
    for source in ("./stdlib", Path("stdlib")):
        assert spelled(load_corpus(source)) == "abcab" * 4
    assert len(load_corpus("stdlib", characters=1_000).training) == 900


@pytest.mark.parametrize("source", ["shakespear", "", "no/such/text", "x" * 5_000])
def test_an_unknown_source_names_the_known_ones(source: str) -> None:
    with pytest.raises(InputError, match=r"there is no file or folder .*, nor is it shakespeare or stdlib"):
        load_corpus(source)


def test_several_texts_are_read_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a" * 9)
    (tmp_path / "b.txt").write_text("b\n" * 5)
    text = read_text([tmp_path / "a.txt", str(tmp_path / "b.txt"), "stdlib"], characters=30)
    assert text.training + text.held_out == text.whole == "a" * 9 + "\n" + "b\n" * 5 + standard_library_text(10)
    assert text.description == {
        "name": "a.txt, b.txt, stdlib",
        "characters": 30,
        "sha256": hashlib.sha256(text.whole.encode()).hexdigest(),
        "training": 27,
        "held_out": 3,
    }


# --- characters the training part has not shown -----------------------------------------------------------------


def test_the_vocabulary_of_a_file_knows_its_training_part_only(tmp_path: Path) -> None:
    corpus = load_corpus(written(tmp_path, "ab" * 9 + "\u00e9b"))
    assert corpus.vocabulary == CharVocabulary(("a", "b", UNKNOWN), UNKNOWN)
    assert corpus.held_out.tolist() == [2, 1]
    assert corpus.vocabulary.decode(corpus.held_out) == UNKNOWN + "b"
    assert corpus.description["unseen"] == 1


def test_the_held_out_part_does_not_change_the_vocabulary(tmp_path: Path) -> None:
    plain = load_corpus(written(tmp_path, "ab" * 9 + "ab"))
    assert plain.description["unseen"] == 0
    assert plain.vocabulary == load_corpus(written(tmp_path, "ab" * 9 + "!?")).vocabulary
    assert plain.vocabulary.encode("b\u4e2d") == [1, 2]  # a text given later


def test_a_text_that_holds_the_replacement_character_has_it_counted_only_where_unseen(tmp_path: Path) -> None:
    corpus = load_corpus(written(tmp_path, ("a" + UNKNOWN) * 9 + UNKNOWN + "!"))
    assert corpus.held_out.tolist() == [1, 1]
    assert corpus.description["unseen"] == 1
    assert load_corpus(written(tmp_path, "ab" * 9 + UNKNOWN + "!")).description["unseen"] == 2


# --- lengths and shares ---------------------------------------------------------------------------------------------


def test_characters_takes_the_beginning(tmp_path: Path) -> None:
    path = written(tmp_path, "abcdefghij" * 2)
    assert spelled(load_corpus(path, characters=10)).startswith("abcdefghi")
    assert len(load_corpus(path, characters=20).training) == 18
    with pytest.raises(InputError, match=r"from 1 to 20, the length of 'notes\.txt'; got 21"):
        load_corpus(path, characters=21)


@pytest.mark.usefixtures("short_play")
def test_more_shakespeare_than_there_is_is_refused() -> None:
    with pytest.raises(InputError, match=f"from 1 to {len(PLAY)}, the length of 'shakespeare'; got 1000"):
        load_corpus("shakespeare", characters=1_000)


@pytest.mark.parametrize("source", ["shakespeare", "stdlib", "."])
@pytest.mark.parametrize("characters", [0, -1, 1.5, True])
def test_a_senseless_length_is_refused(source: str, characters: int) -> None:
    with pytest.raises(InputError, match="characters must be a positive integer"):
        load_corpus(source, characters=characters)


@settings(max_examples=30)
@given(st.integers(2, 400))
def test_the_split_loses_nothing(characters: int) -> None:
    corpus = load_corpus("stdlib", characters=characters)
    assert spelled(corpus) == standard_library_text(characters)
    assert len(corpus.training) == int(characters * 0.9)


def test_a_text_too_short_to_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="1 characters cannot be split"):
        load_corpus(written(tmp_path, "a"))


# --- what is stored ------------------------------------------------------------------------------------------------


def test_the_description_is_complete_and_json() -> None:
    corpus = load_corpus("stdlib", characters=1_000)
    text = standard_library_text(1_000)
    assert corpus.description == {
        "name": "stdlib",
        "characters": 1_000,
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "symbols": len(set(text)),
        "training": 900,
        "held_out": 100,
        "unseen": 0,
    }
    assert json.loads(json.dumps(corpus.description)) == corpus.description


def test_the_ids_are_int64_in_one_dimension() -> None:
    corpus = load_corpus("stdlib", characters=1_000)
    for ids in (corpus.training, corpus.held_out):
        assert ids.dtype == torch.int64
        assert ids.ndim == 1


def test_corpora_can_be_compared_and_hashed() -> None:
    one, other = (load_corpus("stdlib", characters=100) for _ in range(2))
    assert one == one != other  # as objects: tensors have no one truth value
    assert len({one, other}) == 2


@pytest.mark.parametrize(
    ("held_out", "complaint"),
    [
        (torch.tensor([[0]]), "held_out must be 1-D int64"),
        (torch.tensor([0.0]), "held_out must be 1-D int64"),
        (torch.tensor([], dtype=torch.int64), "no held_out text is left in 'odd'"),
        (torch.tensor([3]), r"held_out has ids outside the vocabulary \(0\.\.2\)"),
        (torch.tensor([-1]), r"held_out has ids outside the vocabulary \(0\.\.2\)"),
    ],
)
def test_a_malformed_corpus_is_refused(held_out: torch.Tensor, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        Corpus("odd", CharVocabulary.from_text("abc"), torch.tensor([0, 1]), held_out, {})


# --- the split for hyper-parameter search ------------------------------------------------------------------------


def test_search_never_sees_the_held_out_text(tmp_path: Path) -> None:
    corpus = load_corpus(written(tmp_path, "a" * 81 + "b" * 9 + "c" * 10))
    search = corpus.search_split()
    assert search.vocabulary.decode(search.training) == "a" * 81
    assert search.vocabulary.decode(search.held_out) == "b" * 9
    assert search.vocabulary == corpus.vocabulary
    assert (len(corpus.training), len(corpus.held_out)) == (90, 10)


def test_the_search_split_describes_itself(tmp_path: Path) -> None:
    corpus = load_corpus(written(tmp_path, "ab" * 45 + "c" * 10))
    before = dict(corpus.description)
    described = corpus.search_split().description
    changed = {"training": 81, "held_out": 9, "unseen": 0, "search_share": 0.1}
    assert described == {**before, **changed}
    assert corpus.description == before
    assert before["unseen"] == 10


def test_a_search_split_with_nothing_held_out_is_refused() -> None:
    with pytest.raises(InputError, match="no held_out text is left in 'stdlib'"):
        load_corpus("stdlib", characters=10).search_split()


@pytest.mark.usefixtures("real_shakespeare")
def test_the_real_shakespeare_has_65_symbols_and_the_usual_split() -> None:
    whole = load_corpus("shakespeare")
    assert (len(whole.training), len(whole.held_out)) == (1_003_854, 111_540)
    assert whole.description["sha256"] == shakespeare.SHA256
    part = load_corpus("shakespeare", characters=1_000)
    assert len(part.vocabulary) == 65 > len({*spelled(part)})
