"""Texts of the user's: the same text every time, and nothing that is not text."""

import os
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contentrope.corpora import text_files, text_of
from contentrope.corpora.text_files import SUFFIXES
from contentrope.errors import InputError

# Whatever UTF-8 can hold and a text file may.
texts = st.text(st.characters(exclude_characters="\0\r\ufeff", codec="utf-8"), min_size=1)


def folder_of(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text.encode())
    return root


# --- one file ------------------------------------------------------------------------------------------------------


@given(texts)
def test_a_file_is_read_as_it_is(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "any.suffix")
        path.write_bytes(text.encode())
        assert text_of(path) == text_of(str(path)) == text


def test_every_newline_becomes_one(tmp_path: Path) -> None:
    (tmp_path / "odd.txt").write_bytes(b"a\r\nb\rc\nd\r\r\ne\x0bf\x0c\r")
    assert text_of(tmp_path / "odd.txt") == "a\nb\nc\nd\n\ne\x0bf\x0c\n"


def test_a_byte_order_mark_is_dropped_but_only_the_first(tmp_path: Path) -> None:
    (tmp_path / "marked.txt").write_bytes(b"\xef\xbb\xbfa\xef\xbb\xbfb")
    assert text_of(tmp_path / "marked.txt") == "a\ufeffb"


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_bytes_that_are_not_utf8_are_named_with_their_place(mark: bytes, tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(mark + "caf\u00e9 au lait".encode("latin-1"))
    with pytest.raises(InputError) as caught:
        text_of(path)
    for part in (str(path), f"byte 0xe9 at offset {len(mark) + 3} ", "iconv -f LATIN1 -t UTF-8"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("data", "offset"), [(b"\0" * 8, 0), (b"ab\0c", 2), (b"\x89PNG\0", 4), ("hi".encode("utf-16-le"), 1)]
)
def test_a_binary_file_is_refused(data: bytes, offset: int, tmp_path: Path) -> None:
    path = tmp_path / "picture.txt"
    path.write_bytes(data)
    with pytest.raises(InputError, match=f"picture.txt is not a text file: .*NUL byte at offset {offset}; .*UTF-16"):
        text_of(path)


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf"])
def test_an_empty_file_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_bytes(data)
    for path in (tmp_path / "empty.txt", tmp_path):
        with pytest.raises(InputError, match="holds no text: it is empty"):
            text_of(path)


@pytest.mark.parametrize("path", ["", "no/such/text", "name\0", "x" * 5_000])
def test_a_missing_path_is_named(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder_of(tmp_path, {"here.txt": "not meant by an empty path"}))
    with pytest.raises(InputError, match=r"there is no file or folder .* check the path"):
        text_of(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    folder_of(tmp_path, {"secret.txt": "a"})
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(InputError, match=r"secret.txt cannot be read \(.*Permission denied"):
        text_of(tmp_path / "secret.txt")


# --- a folder ------------------------------------------------------------------------------------------------------


def test_files_come_in_the_order_of_their_paths_whatever_the_system_lists_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["b/z.txt", "a.txt", "b/c/a.md", "B.txt", "b-1/a.txt", "c.txt", "10.txt", "9.txt"]
    folder_of(tmp_path, {name: name + "\n" for name in names})
    walk = os.walk

    def shuffled(*args: object, **kwargs: object) -> object:
        entries = list(walk(*args, **kwargs))  # type: ignore[call-overload]
        random.Random(0).shuffle(entries)
        return [(parent, folders, random.Random(1).sample(files, len(files))) for parent, folders, files in entries]

    expected = "10.txt\n9.txt\nB.txt\na.txt\nb-1/a.txt\nb/c/a.md\nb/z.txt\nc.txt\n"
    assert text_of(tmp_path) == expected
    monkeypatch.setattr(text_files.os, "walk", shuffled)
    assert text_of(tmp_path) == expected


@given(st.lists(texts, min_size=1, max_size=5))
def test_files_are_parted_by_a_newline_only_where_none_is(parts: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        folder_of(Path(folder), {f"{place}.txt": part for place, part in enumerate(parts)})
        joined = text_of(folder)
    expected = parts[0]
    for part in parts[1:]:
        expected += part if expected.endswith("\n") else "\n" + part
    assert joined == expected


def test_an_empty_file_among_others_adds_nothing(tmp_path: Path) -> None:
    assert text_of(folder_of(tmp_path, {"a.txt": "a", "b.txt": "", "c.txt": "c", "d.txt": ""})) == "a\nc"


def test_marks_and_newlines_are_those_of_each_file(tmp_path: Path) -> None:
    assert text_of(folder_of(tmp_path, {"a.txt": "\ufeffa\r", "b.txt": "\ufeffb\r\nc"})) == "a\nb\nc"


def test_only_text_files_that_are_not_hidden_count(tmp_path: Path) -> None:
    for suffix in SUFFIXES:
        folder_of(tmp_path, {f"a{suffix}": "+"})
    folder_of(tmp_path, {"LOUD.TXT": "+"})
    ignored = ["a.png", "a.txt.gz", "txt", ".txt", ".hidden.txt", ".git/a.txt", "sub/.b/c/a.txt"]
    folder_of(tmp_path, dict.fromkeys(ignored, "-"))
    (tmp_path / "folder.txt").mkdir()
    assert text_of(tmp_path).replace("\n", "") == "+" * (len(SUFFIXES) + 1)


def test_a_hidden_folder_that_is_asked_for_is_read(tmp_path: Path) -> None:
    assert text_of(folder_of(tmp_path / ".notes", {"a.txt": "a"})) == "a"


def test_links_to_files_are_followed_and_links_to_folders_are_not(tmp_path: Path) -> None:
    folder_of(tmp_path, {"in/a.txt": "a", "out/far.txt": "far"})
    os.symlink(tmp_path / "out" / "far.txt", tmp_path / "in" / "b.txt")
    os.symlink(tmp_path / "in", tmp_path / "in" / "loop")
    assert text_of(tmp_path / "in") == "a\nfar"


def test_a_dangling_link_is_not_passed_over(tmp_path: Path) -> None:
    folder_of(tmp_path, {"a.txt": "a"})
    os.symlink(tmp_path / "lost", tmp_path / "b.txt")
    with pytest.raises(InputError, match=r"b\.txt cannot be read"):
        text_of(tmp_path)


def test_a_pipe_is_passed_over(tmp_path: Path) -> None:
    os.mkfifo(folder_of(tmp_path, {"a.txt": "a"}) / "b.txt")
    assert text_of(tmp_path) == "a"


def test_a_bad_file_among_good_ones_is_named(tmp_path: Path) -> None:
    folder_of(tmp_path, {"a.txt": "a", "b/c.txt": "c"})
    (tmp_path / "b" / "bad.txt").write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"bad\.txt is not UTF-8: byte 0xff at offset 0"):
        text_of(tmp_path)


@pytest.mark.parametrize("files", [{}, {"a.png": "a"}, {".a.txt": "a"}])
def test_a_folder_without_text_files_says_what_counts(files: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no text files: none ends in \.txt \.text .*name a single file"):
        text_of(folder_of(tmp_path, files))


def test_a_folder_that_cannot_be_listed_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of(tmp_path, {"a.txt": "a", "locked/b.txt": "b"})
    scan = os.scandir

    def refuse(path: str) -> object:
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(InputError, match=r"locked cannot be read \(.*Permission denied"):
        text_of(tmp_path)
