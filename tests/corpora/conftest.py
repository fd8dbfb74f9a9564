"""No test here reaches the network, the user's cache or the user's copy of Tiny Shakespeare, unless it asks for it."""

import os
import urllib.request
from pathlib import Path

import pytest

from contentrope.corpora.shakespeare import FILE_VARIABLE

USERS_COPY = os.environ.get(FILE_VARIABLE)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, which does not exist yet."""

    def no_network(*args: object, **kwargs: object) -> None:
        raise AssertionError("a test must not reach the network")

    monkeypatch.setattr(urllib.request, "urlopen", no_network)
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    monkeypatch.setenv("CONTENTROPE_CACHE", str(tmp_path / "own-cache"))
    return tmp_path / "own-cache"


@pytest.fixture
def real_shakespeare(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real text, where the user has said where it is."""
    if not USERS_COPY:
        pytest.skip(f"needs Tiny Shakespeare: let the environment variable {FILE_VARIABLE} name the file")
    monkeypatch.setenv(FILE_VARIABLE, USERS_COPY)
