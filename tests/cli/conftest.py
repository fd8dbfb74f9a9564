"""A small text, a model trained on it, and Ctrl-C as a user's terminal sends it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from contentrope.cli import main

LINES = "".join(f"line {number % 13} of the text, {number % 7} more\n" for number in range(600))
SIZES = ["--dim", "8", "--layers", "1", "--heads", "2", "--length", "16", "--steps", "20", "--batch-size", "2"]


@pytest.fixture(autouse=True)
def ctrl_c_interrupts() -> Iterator[None]:
    """Python's own handler, also where the tests run in the background and the shell ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "lines.txt"
    path.write_text(LINES)
    return path


@pytest.fixture(scope="session")
def trained(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    assert main(["train", "--text", str(text), "--out", str(out), *SIZES]) == 0
    return out
