"""What happens before a command runs: how torch's threads wait, and Ctrl-C while it is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from contentrope.cli import WAITING_BRIEFLY, main
from contentrope.results import WAITING

# Stands in for torch, whose import takes seconds. Like some modules it makes another error of an interrupt.
TORCH = """
import os, signal
print({name: os.environ.get(name) for name in %r}, flush=True)
try:
    os.kill(os.getpid(), signal.SIGINT)
    raise SystemExit("not stopped")
except KeyboardInterrupt:
    raise ImportError("interrupted") from None
"""


def started(
    folder: Path, words: Sequence[str] = ("contentrope", "info"), **settings: str
) -> subprocess.CompletedProcess[str]:
    """A command in a process where importing torch tells how its threads would wait, and presses Ctrl-C."""
    (folder / "torch.py").write_text(TORCH % (WAITING,))
    others = {name: value for name, value in os.environ.items() if name not in WAITING}
    environment = {**others, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)]), **settings}
    words = [sys.executable, "-m", *words]
    return subprocess.run(words, capture_output=True, text=True, env=environment, timeout=120)


@pytest.mark.parametrize("words", [("contentrope", "info"), ("experiments", "growth")], ids=" ".join)
def test_ctrl_c_while_torch_is_imported_is_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    done = started(tmp_path, words)
    assert (done.returncode, done.stderr) == (130, "\nstopped\n")


def test_before_torch_is_imported_its_threads_are_told_to_sleep_soon(tmp_path: Path) -> None:
    told = started(tmp_path).stdout
    assert told.strip() == str({name: WAITING_BRIEFLY.get(name) for name in WAITING})


@pytest.mark.parametrize("setting", WAITING)
def test_the_users_own_way_of_waiting_is_kept(tmp_path: Path, setting: str) -> None:
    told = started(tmp_path, **{setting: "77"}).stdout
    assert told.strip() == str({name: "77" if name == setting else None for name in WAITING})


def test_the_runtime_takes_the_setting(tmp_path: Path) -> None:
    """OpenMP runtimes print what is in force when they are loaded; one without OpenMP prints nothing."""
    others = {name: value for name, value in os.environ.items() if name not in WAITING}
    environment = {**others, "OMP_DISPLAY_ENV": "VERBOSE", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    shown = [
        subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, timeout=120).stderr
        for words in (["-c", "import torch"], ["-m", "contentrope", "info"])
    ]
    spinning = [line for line in shown[0].splitlines() if "GOMP_SPINCOUNT" in line]
    if not spinning:
        pytest.skip("torch has not GNU's OpenMP runtime here")
    brief = f"'{WAITING_BRIEFLY['GOMP_SPINCOUNT']}'"
    assert brief not in spinning[0]
    assert all(brief in line for line in shown[1].splitlines() if "GOMP_SPINCOUNT" in line)
    assert "GOMP_SPINCOUNT" in shown[1]


@pytest.mark.parametrize("columns", ["1", "30"])
def test_help_is_shown_in_a_narrow_terminal(columns: str) -> None:
    environment = {**os.environ, "COLUMNS": columns, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    words = [sys.executable, "-m", "contentrope", "train", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--learning-rate" in done.stdout


def test_a_command_called_from_python_leaves_the_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WAITING:
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    assert main(["info"]) == 0
    assert dict(os.environ) == before
