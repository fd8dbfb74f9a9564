"""What all commands have in common: help, refusals, and the packages they need."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from contentrope.cli import main
from contentrope.cli.parsing import plain_words
from experiments import __main__ as experiments
from experiments.results import EXPERIMENTS

OPTIONS = {
    "contentrope train": (
        "--text",
        "--variant",
        "--dim",
        "--dropout",
        "--learning-rate",
        "--precision",
        "--tensorboard",
    ),
    "contentrope evaluate": ("MODEL_DIR", "--text", "--lengths", "--distant", "--part {held-out,whole}", "--tasks"),
    "contentrope finetune": (
        "--model MODEL",
        "--text TEXT",
        "--units UNITS",
        "--lora INT",
        "--positions {gated,local}",
    ),
    "contentrope generate": ("MODEL_DIR", "--model", "--prompt", "--temperature", "--top-k", "--stop-at-unit-end"),
    "contentrope serve": (
        "--model MODEL_DIR",
        "--store",
        "--host",
        "--port",
        "--api-key-file",
        "--timeout",
        "--max-tokens",
    ),
    "python -m experiments growth": ("--preset {quick,paper,beyond}", "--seeds", "--variants", "--steps", "--jobs"),
    "python -m experiments facts": ("--layout {end,apart,bar}", "--exponents FLOAT", "--answers-after FLOAT", "--ramp"),
    "python -m experiments retrofit": (
        "--preset {quick,paper}",
        "--model",
        "--text",
        "--original-steps",
        "--times INT",
    ),
    "python -m experiments timing": (
        "--schemes",
        "--backend",
        "--accelerations {none,compile,graphs}",
        "--timed-steps",
    ),
}


def run(words: list[str]) -> int:
    """A command line as it is typed."""
    return experiments.main(words[3:]) if words[0] == "python" else main(words[1:])


@pytest.mark.parametrize("command", OPTIONS)
def test_help_shows_options_defaults_and_an_example(capsys: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit) as stop:
        run([*command.split(), "--help"])
    assert not stop.value.code
    printed = capsys.readouterr().out
    assert f"Example: {command}" in printed
    assert "(default: " in printed
    assert not re.search(r"\{None|default:\s+None", printed)
    for option in OPTIONS[command]:
        assert option in printed


def test_help_names_all_experiments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        experiments.main(["--help"])
    assert not stop.value.code
    printed = capsys.readouterr().out
    assert all(name in printed for name in EXPERIMENTS)


@pytest.mark.parametrize(
    ("command", "messages"),
    [
        ("python -m experiments growth --stepz 3", ["--stepz", "--steps INT"]),
        ("contentrope trian", ["train, finetune, evaluate, generate, index, serve, info"]),
        ("contentrope", ["{train, finetune, evaluate, generate, index, serve, info}"]),
        ("contentrope train --out x", ["--text {shakespeare,stdlib,PATH}"]),
        ("contentrope evaluate --lengthz 3", ["--lengthz", "--lengths INT [INT ...]"]),
    ],
)
def test_a_wrong_command_line_says_what_is_allowed(
    capsys: pytest.CaptureFixture[str], command: str, messages: list[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        run(command.split())
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert not set("│╭╰") & set(error)
    assert "---" not in error, "nor the frame of a terminal that knows no others"
    for message in messages:
        assert message in " ".join(error.split())


@pytest.mark.parametrize("words", [[], ["gardening"], ["--preset", "quick"]])
def test_a_wrong_experiment_is_one_line_that_names_those_there_are(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert experiments.main(words) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert all(name in error for name in EXPERIMENTS)


@pytest.mark.parametrize(
    ("words", "now"),
    [
        ("reproduce shakespeare --steps 3", "python -m experiments growth --steps 3"),
        ("reproduce facts --preset paper", "python -m experiments facts --preset paper"),
        ("report runs/old", "python -m experiments.report runs/old"),
        ("facts --condition mixed", "python -m experiments.facts.show --condition mixed"),
    ],
)
def test_a_command_that_has_left_says_what_to_run(words: str, now: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.endswith(f"{now}\n")
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("python -m experiments growth --steps many", "--steps: 'many' is not a whole number"),
        ("python -m experiments growth --precision int4", "'float32', 'tf32', 'bf16'"),
        ("python -m experiments growth --search maybe", "'true', 'false'"),
        ("python -m experiments growth --lengths 16 long", "--lengths: 'long' is not a whole number"),
        ("contentrope train --text stdlib --out x --learning-rate high", "--learning-rate: 'high' is not a number"),
        ("contentrope evaluate x --text stdlib --part first", "'held-out', 'whole'"),
    ],
)
def test_a_value_of_the_wrong_kind_is_one_line(capsys: pytest.CaptureFixture[str], command: str, message: str) -> None:
    with pytest.raises(SystemExit) as stop:
        run(command.split())
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert len(error.splitlines()) == 1


def test_a_complaint_without_a_frame_is_passed_on() -> None:
    assert plain_words("something unheard of\n") == "error: something unheard of\n"


def test_info_names_versions_schemes_and_backends(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    printed = capsys.readouterr().out
    for word in ("torch", "content", "rope", "reference", "ready"):
        assert word in printed


@pytest.mark.parametrize("package", ["tyro", "rich"])
def test_without_its_packages_it_says_what_to_install(package: str) -> None:
    missing = f"import sys; sys.modules[{package!r}] = None; "
    done = in_python("-c", missing + "from contentrope.cli import main; sys.exit(main(['info']))")
    assert done.returncode == 2
    assert done.stderr == f"error: contentrope needs {package}: pip install contentrope[cli]\n"


def test_the_package_can_be_run_as_a_module() -> None:
    done = in_python("-m", "contentrope", "info")
    assert done.returncode == 0, done.stderr
    assert "backend" in done.stdout


def test_a_reader_that_has_seen_enough_is_no_error(trained: Path) -> None:
    words = [sys.executable, "-m", "contentrope", "generate", str(trained), "--tokens", "3000", "--device", "cpu"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as running:
        assert running.stdout is not None and running.stderr is not None  # noqa: PT018
        running.stdout.read(4)
        running.stdout.close()
        assert running.stderr.read() == b""
        assert running.wait() == 0


def test_a_second_ctrl_c_while_python_ends_is_not_a_traceback() -> None:
    press_at_the_end = (
        "import atexit, os, signal, sys; import contentrope.cli as cli; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); "
        "press = lambda *_: os.kill(os.getpid(), signal.SIGINT); "
        "cli._run = press; atexit.register(press); sys.argv[1:] = ['info']; sys.exit(cli.main())"
    )
    done = in_python("-c", press_at_the_end)
    assert (done.returncode, done.stderr) == (130, "\nstopped\n")


def test_a_terminal_without_a_character_shows_a_question_mark(trained: Path) -> None:
    words = [sys.executable, "-m", "contentrope", "generate", str(trained), "--tokens", "1", "--prompt", "é☃"]
    ascii_only = {**environment(), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*words, "--device", "cpu"], capture_output=True, env=ascii_only)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"??")


def in_python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment())


def environment() -> dict[str, str]:
    """This process's module path, for a subprocess that may lack an installed package."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
