"""The command line as a user meets it: exit status, messages, and the files it leaves."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contentrope.cli import main
from contentrope.experiments import training
from contentrope.results import read_json

TINY = {
    "dim": "8",
    "layers": "1",
    "heads": "2",
    "length": "16",
    "steps": "20",
    "batch-size": "2",
    "characters": "4000",
    "evaluation-tokens": "96",
}


@pytest.fixture(autouse=True)
def ctrl_c_interrupts() -> Iterator[None]:
    """Python's own handler, also where the tests run in the background and the shell ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def tiny(out: Path, *more: str) -> list[str]:
    """A run of seconds; options in ``more`` come last and win."""
    sizes = [word for option, value in TINY.items() for word in (f"--{option}", value)]
    lists = ["--schemes", "content", "rope", "--multiples", "1", "2"]
    return ["reproduce", "growth", *lists, *sizes, "--out", str(out), *more]


def test_growth_writes_and_prints_its_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tiny(tmp_path, "--seed", "3")) == 0
    results = read_json(tmp_path / "results.json")
    assert results["config"]["seed"] == 3
    assert results["config"]["multiples"] == [1, 2]
    printed = capsys.readouterr().out
    for scheme in ("content", "rope"):
        assert f"{results['schemes'][scheme]['perplexity']['32']:.2f}" in printed
    assert str(tmp_path / "results.json") in printed
    assert "windows of 16 characters" in printed
    assert printed.count("loss") == 20  # a line per tenth and scheme, not per step


def test_a_second_run_does_not_train_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(tiny(tmp_path)) == 0
    before = (tmp_path / "results.json").read_bytes()
    monkeypatch.setattr(training._Run, "advance", lambda run: pytest.fail("trained again"))
    assert main(tiny(tmp_path)) == 0
    assert (tmp_path / "results.json").read_bytes() == before


def test_ctrl_c_says_how_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    advance = training._Run.advance

    def press(run: training._Run) -> None:
        advance(run)
        if run.step == 7:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(training._Run, "advance", press)
    assert main(tiny(tmp_path)) == 130
    assert shlex.join(["contentrope", *tiny(tmp_path)]) in capsys.readouterr().err
    monkeypatch.undo()
    assert [path.name for path in tmp_path.glob("checkpoints/content/*")] == ["step-00000007"]
    assert main(tiny(tmp_path)) == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--schemes", "telepathy"], "unknown scheme 'telepathy'"),
        (["--steps", "0"], "steps must be"),
        (["--heads", "3"], "not divisible"),
        (["--device", "abacus"], "device 'abacus' cannot be used"),
    ],
)
def test_refused_settings_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert main(tiny(tmp_path, *more)) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert len(error.splitlines()) == 1


def test_an_out_folder_that_is_a_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(tiny(tmp_path / "file")) == 2
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "growth", "--stepz", "3"], "--steps"),
        (["reproduce", "groth"], "growth"),
        (["reproduce"], "growth"),
        ([], "info"),
    ],
)
def test_a_wrong_command_line_lists_what_is_allowed(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_info_names_versions_schemes_and_backends(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    printed = capsys.readouterr().out
    for word in ("torch", "content", "rope", "reference", "ready"):
        assert word in printed


@pytest.mark.parametrize("package", ["tyro", "rich"])
def test_without_its_packages_it_says_what_to_install(package: str) -> None:
    missing = f"import sys; sys.modules[{package!r}] = None; "
    code = missing + "from contentrope.cli import main; sys.exit(main(['info']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.returncode == 2
    assert done.stderr.strip().endswith("pip install contentrope[cli]")
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_package_can_be_run_as_a_module() -> None:
    command = [sys.executable, "-m", "contentrope", "reproduce", "growth", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    for option in ("--schemes", "--steps", "--seed", "--out"):
        assert option in done.stdout


def environment() -> dict[str, str]:
    """This process's module path, for a subprocess that may lack an installed package."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
