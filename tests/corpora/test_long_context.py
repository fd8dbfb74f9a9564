"""The long-context texts: where they are found, what is refused, how the files are read."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from contentrope.corpora import long_context as module
from contentrope.corpora.long_context import DATA_VARIABLE, NAME, LongContext, is_at_hand, long_context
from contentrope.corpora.shakespeare import cache_folder
from contentrope.errors import InputError
from contentrope.files import digest_of
from tests.support.long_context import QUESTIONS, expect, small_data, write_archive, write_small

USERS_DATA = os.environ.get(DATA_VARIABLE)
USERS_CACHE = cache_folder()


@pytest.fixture(autouse=True)
def not_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_small(tmp_path / "small")
    made = write_archive(tmp_path / "given.tar.xz", tmp_path / "small")
    expect(monkeypatch, tmp_path / "small", made)
    return made


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


# --- where they are found -------------------------------------------------------------------------------------------


def test_a_named_archive_is_unpacked_once(archive: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(archive))
    data = long_context()
    assert data.folder == elsewhere / NAME
    assert data.books("train") == {"one": "A book to learn from.\n"}
    assert left_in(elsewhere) == [NAME]
    monkeypatch.setattr(tarfile, "open", lambda *_, **__: pytest.fail("unpacked again"))
    assert long_context() == data


def test_an_archive_in_the_cache_is_unpacked_beside_itself(archive: Path, elsewhere: Path) -> None:
    assert not is_at_hand()
    elsewhere.mkdir()
    archive.rename(elsewhere / f"{NAME}.tar.xz")
    assert is_at_hand()
    assert long_context().wikitext() == " \n = Lobster = \n"
    assert left_in(elsewhere) == [NAME, f"{NAME}.tar.xz"]


@pytest.mark.parametrize("inside", ["", NAME])
def test_a_folder_that_the_user_unpacked_is_read_where_it_is(
    inside: str, tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = small_data(tmp_path / "own" / inside, monkeypatch)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "own"))
    assert long_context() == data
    assert long_context().books("train")
    assert left_in(elsewhere) == []


def test_two_processes_may_unpack_at_once(archive: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(archive))
    extract = module._extract

    def slower(given: Path, place: Path) -> None:
        extract(given, place)
        extract(given, elsewhere)  # as the other process has it meanwhile

    monkeypatch.setattr(module, "_extract", slower)
    assert long_context().books("train")
    assert left_in(elsewhere) == [NAME]


# --- what is refused ------------------------------------------------------------------------------------------------


def complaint() -> str:
    with pytest.raises(InputError) as caught:
        long_context()
    return str(caught.value)


def test_missing_texts_say_what_is_needed_and_how_to_point_to_it(elsewhere: Path) -> None:
    said = complaint()
    for part in (f"{NAME}.tar.xz", module.ARCHIVE, DATA_VARIABLE, str(elsewhere)):
        assert part in said
    assert not elsewhere.exists()


def test_a_name_that_leads_nowhere_is_no_reason_to_look_elsewhere(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_data(elsewhere / NAME, monkeypatch)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "lost"))
    assert str(tmp_path / "lost") in complaint()


def test_another_archive_is_refused_before_it_is_opened(
    archive: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.write_bytes(archive.read_bytes() + b"\0")
    monkeypatch.setenv(DATA_VARIABLE, str(archive))
    monkeypatch.setattr(tarfile, "open", lambda *_, **__: pytest.fail("opened"))
    said = complaint()
    assert digest_of(archive) in said
    assert module.ARCHIVE in said
    assert left_in(elsewhere) == []


@pytest.mark.parametrize("name", ["../outside.txt", "/outside.txt", "long-context/../../outside.txt"])
def test_nothing_is_unpacked_outside_the_cache(
    name: str, tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = tmp_path / "evil.tar.xz"
    with tarfile.open(evil, "w:xz") as opened:
        info = tarfile.TarInfo(name)
        info.size = 4
        opened.addfile(info, io.BytesIO(b"evil"))
    monkeypatch.setattr(module, "ARCHIVE", digest_of(evil))
    monkeypatch.setenv(DATA_VARIABLE, str(evil))
    with pytest.raises(InputError):
        long_context()
    assert left_in(elsewhere) == []
    assert not list(tmp_path.rglob("outside.txt"))
    assert not Path("/outside.txt").exists()


def test_a_changed_or_missing_file_is_refused_when_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = small_data(tmp_path / "small", monkeypatch)
    book = data.folder / "books/train/one.txt"
    book.write_text("Another book.\n")
    with pytest.raises(InputError, match="has changed") as caught:
        data.books("train")
    assert digest_of(book) in str(caught.value)
    assert data.books("validation"), "others are read"
    book.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        data.books("train")


def test_splits_and_tasks_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = small_data(tmp_path / "small", monkeypatch)
    with pytest.raises(InputError, match="'test'"):
        data.books("test")  # type: ignore[arg-type]
    for task, split in ((3, "train"), (1, "validation")):
        with pytest.raises(InputError, match=r"\[1, 2, 4, 5\]"):
            data.babi(task, split)  # type: ignore[arg-type]


# --- what is read ---------------------------------------------------------------------------------------------------


def test_questions_pairs_and_stories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = small_data(tmp_path / "small", monkeypatch)
    questions = data.squad()
    assert len(questions) == QUESTIONS
    assert questions[1] == (
        "What is number 1?",
        ("answer001", "the answer001"),
        "Passage about answer001 here.",
        "T",
    )
    assert data.xquad() == [("How?", ("long",), "The Elbe is long.", "Rivers")]
    assert data.natural_questions() == [("who", ("Ann",), "Ann was first.", "People")]
    lists = data.key_values()
    assert (len(lists), len(lists[0].pairs)) == (3, 75)
    assert (lists[0].key, lists[0].value) == lists[0].pairs[30]
    stories = data.babi(1, "test")
    assert len(stories) == 40
    for first, second in zip(stories[::2], stories[1::2], strict=True):
        assert (len(first.facts), len(second.facts)) == (3, 6)
        assert second.facts[:3] == first.facts
        for story in (first, second):
            assert len(story.supporting) == 1
            assert story.answer in story.facts[story.supporting[0]]
            assert story.supporting[0] == len(story.facts) - 1
            assert "\t" not in story.question


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> LongContext:
    monkeypatch.setenv("CONTENTROPE_CACHE", str(USERS_CACHE))
    if USERS_DATA:
        monkeypatch.setenv(DATA_VARIABLE, USERS_DATA)
    if not is_at_hand():
        pytest.skip(f"needs the long-context texts: let {DATA_VARIABLE} name them")
    return long_context()


def test_the_real_texts(real: LongContext) -> None:
    train, validation = real.books("train"), real.books("validation")
    assert (len(train), len(validation)) == (24, 3)
    assert not train.keys() & validation.keys()
    assert all(len(text) > 300_000 for text in (train | validation).values())
    for questions, count in ((real.squad(), 1000), (real.xquad(), 1190), (real.natural_questions(), 2655)):
        assert len(questions) == count
        assert all(any(a in q.passage for a in q.answers) for q in questions)
        assert not [q for q in questions if "\n" in q.question or "Answer:" in q.question]
    lists = real.key_values()
    assert len(lists) == 500
    assert all(len(one.pairs) == 75 and (one.key, one.value) in one.pairs for one in lists)
    for task in module.BABI:
        for split in ("train", "test"):
            stories = real.babi(task, split)  # type: ignore[arg-type]
            assert len(stories) == 1000
            assert all(story.supporting and max(story.supporting) < len(story.facts) for story in stories)
    assert real.wikitext().startswith(" \n = Homarus gammarus = \n")
