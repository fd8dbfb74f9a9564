"""What a refused command leaves behind: one line, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


def require_refused(
    main: Callable[[list[str]], int], words: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert len(error.splitlines()) == 1
    assert not list(folder.iterdir())
