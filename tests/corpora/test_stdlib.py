"""The embedded corpus: long enough, plain, and the same every time."""

import sys
from pathlib import Path

import pytest

from contentrope.corpora import fingerprint, standard_library_text, stdlib
from contentrope.errors import InputError


def test_there_are_more_than_a_million_plain_characters() -> None:
    text = standard_library_text(1_200_000)
    assert len(text) == 1_200_000
    assert set(text) <= {"\n", *map(chr, range(32, 127))}
    assert max(map(len, text.split("\n"))) < 256


def test_a_shorter_text_is_the_beginning_of_a_longer_one() -> None:
    assert standard_library_text(200_000).startswith(standard_library_text(150_000))


def test_no_module_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "imaplib", raising=False)
    monkeypatch.setattr(stdlib, "MODULES", ("imaplib",))
    standard_library_text(1_000)
    assert "imaplib" not in sys.modules


def test_tabs_other_newlines_and_foreign_characters_are_normalised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd.py").write_bytes("a\tb\r\nŁ\x0cc\r".encode())
    monkeypatch.setattr(stdlib.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(stdlib, "MODULES", ("odd",))
    assert standard_library_text(13) == "a       b\n?c\n"


def test_too_little_text_says_how_much_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdlib, "MODULES", ("shutil",))
    with pytest.raises(InputError, match=r"characters=10000000 asked, but .* has \d{5}"):
        standard_library_text(10_000_000)


def test_a_missing_module_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdlib, "MODULES", ("shutil", "no_such_module"))
    with pytest.raises(InputError, match="no_such_module"):
        standard_library_text(10_000_000)


@pytest.mark.parametrize("characters", [0, -1, 1.5, True])
def test_a_senseless_length_is_refused(characters: int) -> None:
    with pytest.raises(InputError, match="positive integer"):
        standard_library_text(characters)


def test_the_fingerprint_tells_texts_apart() -> None:
    assert fingerprint("a") != fingerprint("b")
    assert len(fingerprint("a")) == 64
