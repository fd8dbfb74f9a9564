"""The checks for a GPU count what passed, and let nothing that went wrong look as if it had."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_checks
from contentrope.results import read_json

CASES = """
import os
import pytest

def test_right(): pass
def test_wrong(): assert False
def test_left_out(): pytest.skip("not here")
@pytest.fixture
def broken(): raise ValueError
def test_not_begun(broken): pass
def test_dead(): os._exit(3)
"""


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    path = tmp_path / "test_some.py"
    path.write_text(CASES)
    return path


def test_cases_are_counted_over_several_processes(cases: Path) -> None:
    names = [f"{cases}::test_{name}" for name in ("right", "wrong", "left_out", "not_begun")]
    found = gpu_checks.tested(names, processes=2)
    assert found["cases"] == 4
    (counts,) = found["by_file"].values()
    assert counts == {"passed": 1, "failed": 2, "skipped": 1}
    assert sorted(name.partition("::")[2] for name in found["failed"]) == ["test_not_begun", "test_wrong"]


def test_a_file_that_was_skipped_altogether_is_not_in_order(cases: Path) -> None:
    (said,) = gpu_checks.tested([f"{cases}::test_left_out"], processes=1)["failed"]
    assert said.endswith("of which nothing was run")


def test_a_process_that_dies_is_not_forgotten(cases: Path) -> None:
    found = gpu_checks.tested([f"{cases}::test_dead", f"{cases}::test_right"], processes=2)
    assert found["failed"] == ["1 that never ended"]


def test_all_files_are_there_and_have_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "-v")
    names = gpu_checks.collected(gpu_checks.TESTS)
    assert {name.partition("::")[0] for name in names} == set(gpu_checks.TESTS)


def test_some_can_be_selected() -> None:
    (name,) = gpu_checks.collected(["tests/kernels/test_rotary_sums.py"], "same and not promises")
    assert name.endswith("::test_the_same_every_time")


def test_tests_that_cannot_be_collected_end_it(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="tests could not be collected"):
        gpu_checks.collected([str(tmp_path / "none.py")])


@pytest.mark.parametrize(
    ("printed", "errors"),
    [
        ("========= ERROR SUMMARY: 0 errors", 0),
        ("========= ERROR SUMMARY: 12 errors", 12),
        ("========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)", 2),
        ("", None),
    ],
)
def test_what_the_memory_checker_says(printed: str, errors: int | None) -> None:
    assert gpu_checks.summary(printed)[0] == errors


@pytest.mark.parametrize(
    ("errors", "status", "planted", "clean"),
    [(0, 0, 1, True), (3, 0, 1, False), (0, 1, 1, False), (0, 0, 0, False)],
)
def test_clean_is_a_program_that_ended_without_errors_when_a_planted_one_is_found(
    errors: int, status: int, planted: int, clean: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "compute-sanitizer"
    given = f'echo "$@, $PYTORCH_NO_CUDA_MEMORY_CACHING" >> {tmp_path}/given'
    says = f'case "$*" in *faulty*) echo "ERROR SUMMARY: {planted} errors"; exit 1;; esac'
    tool.write_text(f'#!/bin/sh\n{given}\n{says}\necho "ERROR SUMMARY: {errors} errors"\nexit {status}\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    found = gpu_checks.looked_at("racecheck", 2)
    assert found["clean"] is clean
    assert found["said_of_a_planted_fault"] == f"ERROR SUMMARY: {planted} errors"
    called = f"--tool racecheck --kernel-name-exclude kns=cudnn {sys.executable} -m tests.support."
    assert (tmp_path / "given").read_text() == f"{called}all_kernels 2, 1\n{called}faulty_kernels racecheck, 1\n"


def test_a_memory_checker_that_is_missing_is_not_a_clean_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_checks.looked_at("memcheck", 1)["clean"] is False


@pytest.mark.parametrize(("name", "clean", "message"), [("right", True, ""), ("wrong", False, "test_wrong, memcheck")])
def test_everything_is_written_and_what_is_wrong_is_named(
    name: str, clean: bool, message: str, cases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "checks.json"
    monkeypatch.setattr(sys, "argv", ["gpu_checks", "--processes", "1", "--tiles", "3", "--out", str(out)])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu_checks, "environment", lambda device: {"device": device})
    monkeypatch.setattr(gpu_checks, "collected", lambda tests, select: [f"{cases}::test_{name}"])
    monkeypatch.setattr(gpu_checks, "looked_at", lambda tool, tiles: {"clean": clean or tool != "memcheck"})
    if message:
        with pytest.raises(SystemExit, match=message):
            gpu_checks.main()
    else:
        gpu_checks.main()
    stored = read_json(out)
    assert stored["config"]["tiles"] == 3
    assert stored["environment"] == {"device": "cuda"}
    assert stored["results"]["memory"] == {"memcheck": {"clean": clean}, "racecheck": {"clean": True}}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_checks"])
    with pytest.raises(SystemExit) as stopped:
        gpu_checks.main()
    assert stopped.value.code == 2
    assert "need a CUDA device; without one, make test runs the kernels" in capsys.readouterr().err
