"""Tiny Shakespeare: found in order, never taken unchecked, and a failure says what to do."""

import hashlib
import http.client
import io
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from contentrope.corpora import shakespeare, shakespeare_text
from contentrope.corpora.shakespeare import ADDRESS, FILE_VARIABLE, cache_folder, download_bytes
from contentrope.errors import InputError

PLAY = b"ROMEO:\nWhat light?\n"
OTHER = b"HAMLET:\nTo be?\n"


@pytest.fixture(autouse=True)
def short_play(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short text takes the place of the real one."""
    monkeypatch.setattr(shakespeare, "SHA256", hashlib.sha256(PLAY).hexdigest())


def sending(data: bytes) -> Callable[[str], bytes]:
    return lambda address: data


def never(address: str) -> bytes:
    raise AssertionError("nothing should be downloaded")


def put(path: Path, data: bytes = PLAY) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


# --- where it is found ---------------------------------------------------------------------------------------------


def test_the_named_file_comes_first(tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FILE_VARIABLE, str(put(tmp_path / "play.txt")))
    put(elsewhere / "tinyshakespeare.txt", OTHER)  # would be refused
    assert shakespeare_text(never) == PLAY.decode()


def test_then_the_cache(elsewhere: Path) -> None:
    put(elsewhere / "tinyshakespeare.txt")
    assert shakespeare_text(never) == PLAY.decode()


def test_then_it_is_downloaded_once(elsewhere: Path) -> None:
    asked: list[str] = []

    def download(address: str) -> bytes:
        asked.append(address)
        return PLAY

    assert shakespeare_text(download) == shakespeare_text(download) == PLAY.decode()
    assert asked == [ADDRESS]
    assert [path.name for path in elsewhere.iterdir()] == ["tinyshakespeare.txt"]
    assert (elsewhere / "tinyshakespeare.txt").read_bytes() == PLAY


def test_an_empty_variable_is_not_set(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(elsewhere / "tinyshakespeare.txt")
    monkeypatch.setenv(FILE_VARIABLE, "")
    assert shakespeare_text(never) == PLAY.decode()


def test_the_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "own-cache"
    monkeypatch.setenv("CONTENTROPE_CACHE", "")
    assert cache_folder() == tmp_path / "xdg" / "contentrope"
    for ignored in ("relative", ""):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_folder() == tmp_path / "home" / ".cache" / "contentrope"


def test_without_a_home_the_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("CONTENTROPE_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(InputError, match="set CONTENTROPE_CACHE to a folder"):
        cache_folder()


# --- what is refused -----------------------------------------------------------------------------------------------


def complaint(download: Callable[[str], bytes]) -> str:
    with pytest.raises(InputError) as caught:
        shakespeare_text(download)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["missing", "folder"])
def test_a_named_file_that_is_none_is_no_reason_to_look_elsewhere(
    kind: str, tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(elsewhere / "tinyshakespeare.txt")
    (tmp_path / "folder").mkdir()
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / kind))
    said = complaint(never)
    assert f"{FILE_VARIABLE} names {tmp_path / kind}, which is not a file" in said
    assert "unset it" in said


def found_and_expected() -> list[str]:
    return [f"{len(OTHER)} bytes", hashlib.sha256(OTHER).hexdigest(), hashlib.sha256(PLAY).hexdigest()]


def test_a_wrong_named_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "play.txt", OTHER)
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    said = complaint(never)
    for part in (str(path), FILE_VARIABLE, ADDRESS, "unset it", *found_and_expected()):
        assert part in said


def test_a_wrong_cached_file_is_refused_and_kept(elsewhere: Path) -> None:
    path = put(elsewhere / "tinyshakespeare.txt", OTHER)
    said = complaint(sending(PLAY))
    for part in (str(path), "delete it to have it downloaded again", *found_and_expected()):
        assert part in said
    assert path.read_bytes() == OTHER


@pytest.mark.parametrize("data", [b"", PLAY[:-1], PLAY + b"\n", OTHER])
def test_a_wrong_download_is_refused_and_leaves_nothing(data: bytes, elsewhere: Path) -> None:
    said = complaint(sending(data))
    for part in (ADDRESS, f"found {len(data)} bytes", hashlib.sha256(data).hexdigest(), FILE_VARIABLE):
        assert part in said
    assert not elsewhere.exists()


@pytest.mark.parametrize(
    "failure",
    [
        urllib.error.URLError("no route"),
        urllib.error.HTTPError(ADDRESS, 404, "gone", http.client.HTTPMessage(), None),
        TimeoutError("timed out"),
        http.client.IncompleteRead(b"part"),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_a_failed_download_says_how_to_provide_the_file(failure: Exception, elsewhere: Path) -> None:
    def fail(address: str) -> bytes:
        raise failure

    said = complaint(fail)
    for part in (str(failure), ADDRESS, f"save it as {elsewhere / 'tinyshakespeare.txt'}", f"let {FILE_VARIABLE} name"):
        assert part in said
    assert not elsewhere.exists()


def test_a_cache_that_cannot_be_written_is_named(elsewhere: Path) -> None:
    elsewhere.write_text("a file where the folder should be")
    said = complaint(sending(PLAY))
    assert f"{elsewhere / 'tinyshakespeare.txt'} cannot be written" in said
    assert "set CONTENTROPE_CACHE" in said


def test_a_cached_file_that_cannot_be_read_is_not_replaced(elsewhere: Path) -> None:
    elsewhere.mkdir()
    path = elsewhere / "tinyshakespeare.txt"
    os.symlink(elsewhere / "lost", path)
    assert f"{path} cannot be read" in complaint(never)
    path.unlink()
    path.mkdir()
    assert f"{path} cannot be read" in complaint(never)


def test_the_download_has_a_timeout_and_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def open_address(address: str, timeout: float) -> io.BytesIO:
        calls.append((address, timeout))
        return io.BytesIO(b"x" * 100)

    monkeypatch.setattr(urllib.request, "urlopen", open_address)
    monkeypatch.setattr(shakespeare, "BYTES", 10)
    # One more than the file has: enough for the checksum to tell.
    assert download_bytes("somewhere") == b"x" * 11
    assert calls == [("somewhere", shakespeare.TIMEOUT_SECONDS)]


def test_the_real_text(real_shakespeare: None, monkeypatch: pytest.MonkeyPatch) -> None:
    sha256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
    monkeypatch.setattr(shakespeare, "SHA256", sha256)
    text = shakespeare_text(never)
    assert (len(text), len(set(text))) == (1_115_394, 65)
    assert hashlib.sha256(text.encode()).hexdigest() == sha256
    assert text.startswith("First Citizen:\nBefore we proceed")
