"""What all commands have in common: help, refusals, and the packages they need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from contentrope.cli import main
from contentrope.cli.commands import plain_words

OPTIONS = {
    ("reproduce", "shakespeare"): ("--preset", "--seeds", "--variants", "--steps", "--jobs", "--out", "the preset's)"),
    ("reproduce", "timing"): ("--preset {quick,paper}", "--variants ROW", "--schemes", "--backend", "--timed-steps"),
    ("report",): ("DIR", "--out"),
    ("train",): ("--text", "--variant", "--dim", "--dropout", "--learning-rate", "--precision", "--tensorboard"),
    ("evaluate",): ("MODEL_DIR", "--text", "--lengths", "--distant", "--part {held-out,whole}"),
    ("reproduce", "retrofit"): (
        "--preset {quick,paper}",
        "--model MODEL",
        "--text TEXT",
        "--original-steps",
        "--times",
    ),
    ("finetune",): ("--model MODEL", "--text TEXT", "--units UNITS", "--lora INT", "--positions {gated,local}"),
    ("generate",): (
        "MODEL_DIR",
        "--model MODEL",
        "--prompt",
        "--temperature",
        "--top-k",
        "--top-p",
        "--stop-at-unit-end",
    ),
}


@pytest.mark.parametrize("command", OPTIONS, ids=" ".join)
def test_help_shows_options_defaults_and_an_example(
    capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*command, "--help"])
    assert not stop.value.code
    printed = capsys.readouterr().out
    assert f"Example: contentrope {' '.join(command)}" in printed
    assert "(default: " in printed
    assert "None" not in printed
    for option in OPTIONS[command]:
        assert option in printed


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["reproduce", "shakespeare", "--stepz", "3"], ["--stepz", "--steps INT"]),
        (["reproduce", "shakespear"], ["shakespeare"]),
        (["reproduce"], ["shakespeare"]),
        (["trian"], ["reproduce, report, train, finetune, evaluate, generate, facts, info"]),
        ([], ["{reproduce, report, train, finetune, evaluate, generate, facts, info}"]),
        (["train", "--out", "x"], ["--text {shakespeare,stdlib,PATH}"]),
        (["evaluate"], ["MODEL_DIR"]),
    ],
)
def test_a_wrong_command_line_says_what_is_allowed(
    capsys: pytest.CaptureFixture[str], arguments: list[str], messages: list[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert not set("│╭╰") & set(error)
    assert "---" not in error, "nor the frame of a terminal that knows no others"
    for message in messages:
        assert message in " ".join(error.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "shakespeare", "--steps", "many"], "--steps: 'many' is not a whole number"),
        (["reproduce", "shakespeare", "--precision", "int4"], "'float32', 'tf32', 'bf16'"),
        (["reproduce", "shakespeare", "--lengths", "16", "long"], "--lengths: 'long' is not a whole number"),
        (
            ["train", "--text", "stdlib", "--out", "x", "--learning-rate", "high"],
            "--learning-rate: 'high' is not a number",
        ),
        (["evaluate", "x", "--text", "stdlib", "--part", "first"], "'held-out', 'whole'"),
    ],
)
def test_a_value_of_the_wrong_kind_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
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
    assert done.stderr == f"error: the command line needs {package}: pip install contentrope[cli]\n"


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
