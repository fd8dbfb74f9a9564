"""``contentrope --version``."""

from __future__ import annotations

import pytest

import contentrope
from contentrope.cli import main


def test_the_version_is_told_without_any_other_package(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tyro", None)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"contentrope {contentrope.__version__}\n"
